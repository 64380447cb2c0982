//! An answer with its own data: what a handler returns when the answer is written later or on another core.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::code::response::SUCCESS;
use super::encode::encode_response;
use super::frame::HeaderType;

/// One answer; which request it belongs to is said when it is encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub code: i32,
    pub remark: Option<String>,
    pub ext: Vec<(Cow<'static, str>, String)>,
    pub body: Bytes,
}

impl Response {
    pub fn ok() -> Response {
        Response::with_code(SUCCESS)
    }

    pub fn with_code(code: i32) -> Response {
        Response { code, ..Response::default() }
    }

    /// An answer whose remark says why the request was not carried out.
    pub fn fail(code: i32, remark: impl Into<String>) -> Response {
        Response { code, remark: Some(remark.into()), ..Response::default() }
    }

    /// Adds one ext field.
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl ToString) -> Response {
        self.ext.push((name.into(), value.to_string()));
        self
    }

    pub fn body(mut self, body: impl Into<Bytes>) -> Response {
        self.body = body.into();
        self
    }

    /// Appends the frame that answers request `opaque`, in that request's header type.
    pub fn encode(&self, out: &mut BytesMut, header_type: HeaderType, opaque: i32, version: i32) {
        let ext: SmallVec<[(&str, &str); 16]> = self.ext.iter().map(|(name, value)| (&**name, &**value)).collect();
        encode_response(out, header_type, self.code, version, opaque, self.remark.as_deref(), &ext, &self.body);
    }
}
