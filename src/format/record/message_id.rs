//! The message id that names a record by where it is stored: store host, port and physical offset in hexadecimal.
//!
//! Source: store.md 2.9.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::types::PhyOffset;

const LEN_V4: usize = 2 * (4 + 4 + 8);
const LEN_V6: usize = 2 * (16 + 4 + 8);

/// The id of the record at `phy` on the broker at `store_host`: 32 upper-case hexadecimal digits, or 56 if IPv6.
pub fn message_id(store_host: SocketAddr, phy: PhyOffset) -> String {
    let mut id = String::with_capacity(LEN_V6);
    write_message_id(&mut id, store_host, phy);
    id
}

/// Appends the [`message_id`] to `out`; a send answers with one, for a client batch with several.
pub fn write_message_id(out: &mut String, store_host: SocketAddr, phy: PhyOffset) {
    match store_host.ip().to_canonical() {
        IpAddr::V4(v4) => push_hex(out, &v4.octets()),
        IpAddr::V6(v6) => push_hex(out, &v6.octets()),
    }
    push_hex(out, &u32::from(store_host.port()).to_be_bytes());
    push_hex(out, &phy.0.to_be_bytes());
}

/// Reads an id back; none if it has another length, other characters or an impossible port.
pub fn parse_message_id(id: &str) -> Option<(SocketAddr, PhyOffset)> {
    if !id.is_ascii() {
        return None;
    }
    let (ip, rest): (IpAddr, &str) = match id.len() {
        LEN_V4 => (Ipv4Addr::from(u32::try_from(hex(&id[..8])?).ok()?).into(), &id[8..]),
        LEN_V6 => {
            let bits = (u128::from(hex(&id[..16])?) << 64) | u128::from(hex(&id[16..32])?);
            (Ipv6Addr::from(bits).into(), &id[32..])
        }
        _ => return None,
    };
    let port = u16::try_from(hex(&rest[..8])?).ok()?;
    Some((SocketAddr::new(ip, port), PhyOffset(hex(&rest[8..])?)))
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 0xf)]));
    }
}

/// Up to 16 hexadecimal digits, and no sign.
fn hex(digits: &str) -> Option<u64> {
    digits.bytes().try_fold(0, |number, digit| Some((number << 4) | u64::from(char::from(digit).to_digit(16)?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_id_is_host_port_and_place_in_hexadecimal() {
        let host = SocketAddr::from(([127, 0, 0, 1], 10911));
        assert_eq!(message_id(host, PhyOffset(4096)), "7F00000100002A9F0000000000001000");
        let mapped: SocketAddr = "[::ffff:127.0.0.1]:10911".parse().expect("an address");
        assert_eq!(message_id(mapped, PhyOffset(4096)), message_id(host, PhyOffset(4096)));
        let v6: SocketAddr = "[2001:db8::1]:10911".parse().expect("an address");
        assert_eq!(message_id(v6, PhyOffset(1)), "20010DB800000000000000000000000100002A9F0000000000000001");
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for id in [
            "",
            "7F00000100002A9F000000000000100",
            "7F00000100002A9F000000000000100G",
            "7F00000100012A9F0000000000001000",
            "+F00000100002A9F0000000000001000",
            "7F00000100002A9F00000000000010é",
        ] {
            assert_eq!(parse_message_id(id), None, "{id}");
        }
    }

    proptest! {
        #[test]
        fn every_id_reads_back(v6: bool, bits: u128, port: u16, phy: u64) {
            let ip = if v6 { IpAddr::from(bits.to_be_bytes()) } else { IpAddr::from((bits as u32).to_be_bytes()) };
            let host = SocketAddr::new(ip.to_canonical(), port);
            let id = message_id(host, PhyOffset(phy));
            prop_assert_eq!(parse_message_id(&id), Some((host, PhyOffset(phy))));
            prop_assert_eq!(parse_message_id(&id.to_lowercase()), Some((host, PhyOffset(phy))));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in ".{0,60}") {
            let _ = parse_message_id(&text);
        }
    }
}
