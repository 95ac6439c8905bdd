//! Frames: any bytes as what arrives at a connection; in whatever pieces, they are the same commands, which written and
//! read again are the same, in either way of writing headers.

use txstore::remoting::{Command, ExtFields, FrameError, FrameReader, SerializeType, encode};

use super::Input;

/// Languages that a JSON header has a name for.
const LANGUAGES: u8 = 14;

/// The first byte is the pieces' size, the rest what arrives.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let size = usize::from(input.byte()).max(1);
    let (whole, why) = read(input.0, input.0.len().max(1));
    assert_eq!(read(input.0, size), (whole.clone(), why), "in pieces of {size}");
    for command in whole {
        again(&command);
        let other = match command.serialize_type {
            SerializeType::Json => SerializeType::Binary,
            SerializeType::Binary => SerializeType::Json,
        };
        again(&Command {
            serialize_type: other,
            language: if command.language < LANGUAGES { command.language } else { 7 },
            remark: command.remark.clone().filter(|remark| !remark.is_empty()),
            ..command
        });
    }
}

/// The commands, and why there are no more of them.
fn read(bytes: &[u8], size: usize) -> (Vec<Command>, Option<FrameError>) {
    let (mut reader, mut commands) = (FrameReader::default(), Vec::new());
    for piece in bytes.chunks(size) {
        reader.feed(piece);
        loop {
            match reader.take() {
                Ok(Some(command)) => commands.push(command),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(reader.take().as_ref(), Err(&error), "an error is repeated");
                    assert_eq!(reader.buffered(), 0, "nothing is kept of what cannot be read");
                    return (commands, Some(error));
                }
            }
        }
        assert!(reader.buffered() <= bytes.len());
    }
    (commands, None)
}

fn again(command: &Command) {
    let mut bytes = b"before".to_vec();
    if encode(command, &mut bytes).is_err() {
        assert_eq!(bytes, b"before", "after an error all is as it was");
        return;
    }
    let (found, why) = read(&bytes[6..], bytes.len());
    assert_eq!((found.as_slice(), why), ([command.clone()].as_slice(), None));
    let fields: ExtFields = command.ext_fields.iter().collect();
    assert_eq!(fields, command.ext_fields);
    let answer = command.response(1, Some(String::new()));
    assert!(answer.is_response() && answer.opaque == command.opaque);
}
