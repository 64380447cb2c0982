//! Outgoing exchanges with name servers that run elsewhere.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::TcpStream;

use crate::wire::{FRAME_LEN_MAX, expected_len};

/// A name server must answer within this.
const LIMIT: Duration = Duration::from_secs(3);

/// Sends one request frame and returns the answer frame, on a connection of its own.
///
/// # Errors
/// What the sockets say; `TimedOut` after three seconds; `InvalidData` for an answer that is no frame.
pub async fn exchange(addr: SocketAddr, request: BytesMut) -> io::Result<Vec<u8>> {
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await.map_err(io::Error::from)?;
        stream.write_all(&request).await?;
        let mut answer = Vec::new();
        let mut part = [0u8; 4096];
        loop {
            let len = stream.read(&mut part).await?;
            if len == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            answer.extend_from_slice(&part[..len]);
            match expected_len(&answer) {
                Ok(Some(expected)) if answer.len() >= expected => return Ok(answer),
                Ok(_) if answer.len() <= FRAME_LEN_MAX => {}
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    };
    crate::io::within(LIMIT, exchange).await.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}
