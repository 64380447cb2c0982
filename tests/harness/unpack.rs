//! A store that is kept as an archive.

use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;

/// Unpacks the folder `store` of an archive: as much of the format as GNU tar used, with names of up to 100 bytes or in a
/// record of their own, and sparse files of few parts.
pub fn unpack(archive: &Path, to: &Path) {
    let mut tar = Vec::new();
    GzDecoder::new(fs::File::open(archive).unwrap()).read_to_end(&mut tar).unwrap();
    let text = |field: &[u8]| String::from_utf8(field.split(|byte| *byte == 0).next().unwrap().to_vec()).unwrap();
    let number = |field: &[u8]| usize::from_str_radix(text(field).trim(), 8).unwrap();
    let (mut at, mut long_name) = (0, None);
    while tar.get(at).is_some_and(|byte| *byte != 0) {
        let header = &tar[at..at + 512];
        let len = number(&header[124..136]);
        let content = &tar[at + 512..at + 512 + len];
        at += 512 + len.next_multiple_of(512);
        if header[156] == b'L' {
            long_name = Some(text(content));
            continue;
        }
        let name = long_name.take().unwrap_or_else(|| text(&header[..100]));
        let path = to.join(name.strip_prefix("store/").expect("everything is in one folder"));
        match header[156] {
            b'5' => fs::create_dir_all(path).unwrap(),
            b'0' => fs::write(path, content).unwrap(),
            b'S' => {
                assert_eq!(header[482], 0, "its parts are all in the header");
                let mut whole = vec![0; number(&header[483..495])];
                let mut rest = content;
                for part in header[386..482].chunks(24).filter(|part| part[0] != 0) {
                    let (from, len) = (number(&part[..12]), number(&part[12..]));
                    whole[from..from + len].copy_from_slice(&rest[..len]);
                    rest = &rest[len..];
                }
                fs::write(path, whole).unwrap();
            }
            other => panic!("an entry of type {other}"),
        }
    }
}
