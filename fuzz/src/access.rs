//! Access: any request, signed or not; only who knows the secret is let in, and only to what his account may.

use std::collections::HashMap;

use txstore::remoting::{Command, FrameReader};
use txstore::server::access::{Denied, NamedOffset, admit};
use txstore::server::accounts::{ACCESS_KEY, AccountOptions, Accounts, Permission, SIGNATURE, sign};

use super::Input;

/// Requests that any account may send: leaving, a subscription's form, look-ups of addresses.
const FOR_ALL: [i32; 5] = [35, 46, 101, 105, 106];
/// Requests that may name an offset at which the log has no record.
const BY_OFFSET: [i32; 2] = [33, 37];

/// The first byte says what the log contains and how the frame is changed; the rest is the frame.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let how = input.byte();
    let mut reader = FrameReader::default();
    reader.feed(input.0);
    let Ok(Some(request)) = reader.take() else { return };
    let accounts = Accounts::new([
        account("nothing", false, Permission::DENY),
        account("sends", false, Permission::PUB),
        account("reads", false, Permission::SUB),
        account("operator", true, Permission::DENY),
    ]);
    let topics_of = |_: NamedOffset| if how & 1 == 0 { Vec::new() } else { vec!["orders".to_owned()] };
    let allowed = |request: &Command| admit(&accounts, request, topics_of);
    if allowed(&request) != Err(Denied::NotSigned) {
        // Who wrote this knew the secret.
        let name = request.ext_fields.get(ACCESS_KEY).unwrap().to_owned();
        let again = sign(request.clone(), &name, &secret(&name));
        assert_eq!(again.ext_fields.get(SIGNATURE), request.ext_fields.get(SIGNATURE));
    }
    let by = |name: &str| sign(request.clone(), name, &secret(name));
    assert_eq!(allowed(&by("operator")), Ok(()));
    for name in ["nothing", "sends", "reads"] {
        let done = allowed(&by(name));
        assert_ne!(done, Err(Denied::NotSigned));
        if name == "nothing" && done.is_ok() {
            let nowhere = how & 1 == 0 && BY_OFFSET.contains(&request.code);
            assert!(nowhere || no_consumers(&request) || FOR_ALL.contains(&request.code), "{}", request.code);
        }
        // A client that sends a secret as a topic's name gets it back in the remark.
        let said_it = input.0.windows(secret(name).len()).any(|said| said == secret(name).as_bytes());
        if let Err(Denied::NotAllowed(why)) = done {
            assert!(said_it || !why.contains(&secret(name)));
        }
    }
    assert_eq!(allowed(&sign(request.clone(), "nobody", &secret("nobody"))), Err(Denied::NotSigned));
    assert_eq!(allowed(&sign(request.clone(), "operator", &secret("reads"))), Err(Denied::NotSigned));
    assert_eq!(allowed(&tampered(by("operator"), how)), Err(Denied::NotSigned));
}

/// A heartbeat of producers alone needs nothing.
fn no_consumers(request: &Command) -> bool {
    let said = || serde_json::from_slice::<serde_json::Value>(&request.body).ok();
    request.code == 34 && said().is_some_and(|said| said["consumerDataSet"].as_array().is_none_or(Vec::is_empty))
}

fn tampered(mut request: Command, how: u8) -> Command {
    let signature = request.ext_fields.get(SIGNATURE).unwrap().to_owned();
    match how >> 1 & 3 {
        0 => request.body.push(how),
        1 => request.ext_fields.set("one more", "x"),
        2 => request.ext_fields.set(SIGNATURE, &signature[1..]),
        _ => request.ext_fields.set(ACCESS_KEY, "reads"),
    }
    request
}

fn secret(name: &str) -> String {
    format!("the secret of {name}")
}

fn account(name: &str, admin: bool, may: Permission) -> AccountOptions {
    AccountOptions {
        access_key: name.to_owned(),
        secret_key: secret(name),
        admin,
        default_topic: may,
        default_group: may,
        topics: HashMap::from([("closed".to_owned(), Permission::DENY)]),
        groups: HashMap::new(),
    }
}
