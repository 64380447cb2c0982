//! From the bytes of a whole frame to a [`Command`], by the header's type.

use super::command::{Command, ExtFields, Language};
use super::frame::{FrameBounds, FrameError, HeaderType};
use super::{binary_header, json_header};

impl<'a> Command<'a> {
    /// Reads the frame that [`super::first_frame`] found at `bounds` of the same buffer.
    ///
    /// # Errors
    /// The header is no JSON object or breaks the binary layout. Unknown and missing fields are no errors.
    ///
    /// # Panics
    /// If `bounds` is not of this buffer.
    // A command is a thousand bytes: one copy less.
    #[inline(always)]
    pub fn decode(frame: &'a [u8], bounds: &FrameBounds) -> Result<Command<'a>, FrameError> {
        let mut command = Command {
            header_type: bounds.header_type,
            code: 0,
            language: Language::default(),
            version: 0,
            opaque: 0,
            flag: 0,
            remark: None,
            ext: ExtFields::default(),
            body: &frame[bounds.body.clone()],
        };
        let header = &frame[bounds.header.clone()];
        match bounds.header_type {
            HeaderType::Json => json_header::decode_into(header, &mut command)?,
            HeaderType::Rocketmq => binary_header::decode_into(header, &mut command)?,
        }
        Ok(command)
    }
}
