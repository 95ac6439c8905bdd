//! Any command can be decoded from its bytes, in pieces of any size, and any other bytes are a named error.

use proptest::prelude::*;

use super::command::{Command, ExtFields, FLAG_ONE_WAY, SerializeType};
use super::frame::{FRAME_MAX, FrameError, FrameReader, HEADER_MAX, encode};

fn bytes_of(command: &Command) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(command, &mut bytes).unwrap();
    bytes
}

fn frame(serialize_type: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
    let total = u32::try_from(4 + header.len() + body.len()).unwrap();
    let mark = u32::from(serialize_type) << 24 | u32::try_from(header.len()).unwrap();
    [&total.to_be_bytes()[..], &mark.to_be_bytes()[..], header, body].concat()
}

fn taken(bytes: &[u8]) -> Result<Option<Command>, FrameError> {
    let mut reader = FrameReader::default();
    reader.feed(bytes);
    reader.take()
}

fn any_command() -> impl Strategy<Value = Command> {
    let binary = prop_oneof![Just(SerializeType::Json), Just(SerializeType::Binary)];
    let fields = proptest::collection::vec((".{0,12}", "(?s).{0,24}"), 0..8);
    let body = proptest::collection::vec(any::<u8>(), 0..64);
    let numbers = (any::<i16>(), 0_u8..14, any::<i16>(), any::<i32>(), any::<i32>());
    (numbers, proptest::option::of("(?s).{1,24}"), fields, body, binary).prop_map(
        |((code, language, version, opaque, flag), remark, fields, body, serialize_type)| Command {
            code: code.into(),
            language,
            version: version.into(),
            opaque,
            flag,
            remark,
            ext_fields: fields.into_iter().collect(),
            body,
            serialize_type,
        },
    )
}

proptest! {
    #[test]
    fn commands_come_back_from_pieces_of_any_size(
        commands in proptest::collection::vec(any_command(), 1..5),
        piece in 1_usize..200,
    ) {
        let bytes: Vec<u8> = commands.iter().flat_map(bytes_of).collect();
        let (mut reader, mut found) = (FrameReader::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            reader.feed(piece);
            while let Some(command) = reader.take().unwrap() {
                found.push(command);
            }
        }
        prop_assert_eq!(found, commands);
        prop_assert_eq!(reader.buffered(), 0);
    }

    #[test]
    fn a_changed_frame_is_a_command_or_an_error(
        command in any_command(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = bytes_of(&command);
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = taken(&bytes);
    }

    #[test]
    fn any_header_is_a_command_or_an_error(serialize_type in 0_u8..3, header in proptest::collection::vec(any::<u8>(), 0..99)) {
        let _ = taken(&frame(serialize_type, &header, b"body"));
    }
}

#[test]
fn a_header_of_a_java_client_is_read() {
    let header = br#"{"code":310,"extFields":{"a":"group","h":"0","f":4,"j":null},"flag":2,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}"#;
    let command = taken(&frame(0, header, b"hello")).unwrap().unwrap();
    assert_eq!((command.code, command.language, command.opaque, command.version), (310, 0, 7, 479));
    assert_eq!((command.ext_fields.get("a"), command.ext_fields.get("f")), (Some("group"), Some("4")));
    assert_eq!((command.ext_fields.get("j"), &command.body[..]), (None, &b"hello"[..]));
    assert!(command.is_one_way() && !command.is_response());
}

#[test]
fn a_binary_header_has_these_bytes() {
    let mut command = Command::request(10, 3);
    command.serialize_type = SerializeType::Binary;
    command.flag = FLAG_ONE_WAY;
    command.ext_fields = ExtFields::from_iter([("ab", "c")]);
    let fields = [&[0, 2][..], b"ab", &[0, 0, 0, 1], b"c"].concat();
    let header = [&[0, 10, 7, 1, 223, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9][..], &fields].concat();
    assert_eq!(bytes_of(&command), frame(1, &header, b""));
}

#[test]
fn a_response_is_written_as_its_request_was() {
    let mut request = Command::request(11, 42);
    request.serialize_type = SerializeType::Binary;
    let response = request.response(19, Some("nothing new".into()));
    assert_eq!((response.code, response.opaque, response.serialize_type), (19, 42, SerializeType::Binary));
    assert!(response.is_response());
}

#[test]
fn a_huge_length_is_refused_by_its_four_bytes() {
    let total = u32::try_from(FRAME_MAX + 1).unwrap();
    assert_eq!(taken(&total.to_be_bytes()), Err(FrameError::TooLarge { total: FRAME_MAX + 1 }));
    assert_eq!(taken(&u32::MAX.to_be_bytes()), Err(FrameError::TooLarge { total: 0xFFFF_FFFF }));
}

#[test]
fn a_long_header_is_refused_before_it_arrives() {
    let mark = |header: usize| u32::try_from(header).unwrap().to_be_bytes();
    let begin = |header: usize| [u32::try_from(FRAME_MAX).unwrap().to_be_bytes(), mark(header)].concat();
    assert_eq!(taken(&begin(HEADER_MAX)), Ok(None));
    assert_eq!(taken(&begin(HEADER_MAX + 1)), Err(FrameError::HeaderTooLarge { header: HEADER_MAX + 1 }));
    let mut command = Command::request(11, 42);
    command.remark = Some("x".repeat(HEADER_MAX));
    assert!(matches!(encode(&command, &mut Vec::new()), Err(FrameError::HeaderTooLarge { .. })));
}

#[test]
fn malformed_frames_have_exact_errors() {
    let field = |field, what| Err(FrameError::Field { field, what });
    assert_eq!(taken(&[0, 0, 0, 3, 0, 0, 0]), Err(FrameError::TooSmall { total: 3 }));
    assert_eq!(taken(&[0, 0, 0, 9, 0, 0, 0, 6]), Err(FrameError::HeaderTooLong { header: 6, room: 5 }));
    assert_eq!(taken(&frame(2, b"", b"")), Err(FrameError::SerializeType { found: 2 }));
    assert!(matches!(taken(&frame(0, b"{", b"")), Err(FrameError::Json { .. })));
    assert!(matches!(taken(&frame(0, b"[]", b"")), Err(FrameError::Json { .. })));
    assert_eq!(taken(&frame(0, b"{}", b"")), field("code", "is missing"));
    assert_eq!(taken(&frame(0, br#"{"code":2147483648}"#, b"")), field("code", "is not a 32-bit integer"));
    let no_object = |what: &str| what.contains("expected extFields as an object");
    let taken_as = taken(&frame(0, br#"{"code":1,"extFields":[]}"#, b""));
    assert!(matches!(taken_as, Err(FrameError::Json { what }) if no_object(&what)));
    let none = taken(&frame(0, br#"{"extFields":null,"code":1}"#, b"")).unwrap().unwrap();
    assert!(none.ext_fields.is_empty());
    assert_eq!(taken(&frame(1, &[0, 1, 0], b"")), field("version", "is cut off"));
    let head = [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let after = |rest: &[u8]| taken(&frame(1, &[&head[..], rest].concat(), b""));
    assert_eq!(after(&[255, 255, 255, 255]), field("remark", "states a length below 0"));
    assert_eq!(after(&[0, 0, 0, 9, b'x']), field("remark", "is longer than what is left"));
    let odd = after(&[0, 0, 0, 1, 0xff, 0, 0, 0, 0]).unwrap().unwrap();
    assert_eq!(odd.remark.as_deref(), Some("\u{fffd}"), "as RocketMQ reads it");
    assert_eq!(after(&[0, 0, 0, 0, 0, 0, 0, 2, 0xff, 0xff]), field("ext field name", "states a length below 0"));
    assert_eq!(after(&[0, 0, 0, 0, 0, 0, 0, 3, 0, 1, b'k']), field("ext field value", "is cut off"));
}

/// Sixteen MiB of names, each compared with all names before it, would keep a thread busy for hours.
#[test]
fn a_header_has_a_thousand_named_values_at_most() {
    let with = |count: usize, kind| {
        let mut command = Command::request(1, 1);
        command.ext_fields = (0..count).map(|number| (number.to_string(), "x")).collect();
        command.serialize_type = kind;
        taken(&bytes_of(&command))
    };
    for kind in [SerializeType::Json, SerializeType::Binary] {
        assert_eq!(with(1_000, kind).unwrap().unwrap().ext_fields.len(), 1_000);
        let refused = with(1_001, kind).unwrap_err().to_string();
        assert!(refused.contains("more than 1000"), "{refused}");
    }
}

#[test]
fn after_an_error_nothing_is_read_any_more() {
    let mut reader = FrameReader::default();
    reader.feed(&frame(2, b"", b""));
    let error = reader.take().unwrap_err();
    reader.feed(&bytes_of(&Command::request(1, 1)));
    assert_eq!((reader.take(), reader.buffered()), (Err(error), 0));
}

#[test]
fn what_cannot_be_written_leaves_nothing() {
    let mut command = Command::request(200_050, 1);
    command.serialize_type = SerializeType::Binary;
    let mut out = b"before".to_vec();
    let what = "does not fit the two bytes it has here";
    assert_eq!(encode(&command, &mut out), Err(FrameError::Field { field: "code", what }));
    command = Command::request(1, 1);
    command.body = vec![0; FRAME_MAX];
    assert!(matches!(encode(&command, &mut out), Err(FrameError::TooLarge { .. })));
    assert_eq!(out, b"before");
}
