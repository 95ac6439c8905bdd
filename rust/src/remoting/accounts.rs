//! Accounts: who may ask a server for what, and whether a request is theirs, by RocketMQ's ACL signature.
//!
//! In: accounts, as Python read them; requests. Out: the account that signed a request, and what it lacks. Always: secrets
//! are compared in constant time, and are no part of any text. Not here: what a request needs (`access`), files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use subtle::ConstantTimeEq;

use super::command::Command;

/// The field that names the account.
pub const ACCESS_KEY: &str = "AccessKey";
/// The field with the signature; it is not signed itself.
pub const SIGNATURE: &str = "Signature";

/// What an account may do with a topic or a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permission(u8);

impl Permission {
    /// Nothing.
    pub const DENY: Self = Self(0);
    /// Send.
    pub const PUB: Self = Self(1);
    /// Read.
    pub const SUB: Self = Self(2);
    /// Send and read.
    pub const BOTH: Self = Self(3);

    /// By its bits: 1 send, 2 read; others count for nothing.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::BOTH.0)
    }

    /// Whether any of `wanted` is allowed.
    const fn allows(self, wanted: Self) -> bool {
        self.0 & wanted.0 != 0
    }
}

/// An account, as whoever runs the server wrote it.
pub struct AccountOptions {
    /// Names it.
    pub access_key: String,
    /// Proves it.
    pub secret_key: String,
    /// Whether it may do everything.
    pub admin: bool,
    /// For topics that are not among `topics`.
    pub default_topic: Permission,
    /// For groups that are not among `groups`.
    pub default_group: Permission,
    /// By name.
    pub topics: HashMap<String, Permission>,
    /// By name.
    pub groups: HashMap<String, Permission>,
}

/// What a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// To send to a topic.
    Send(Cow<'a, str>),
    /// To read a topic.
    Read(Cow<'a, str>),
    /// One of both.
    SendOrRead(Cow<'a, str>),
    /// To consume in a group.
    Group(Cow<'a, str>),
    /// To administer the server.
    Admin,
}

impl fmt::Display for Need<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(topic) => write!(out, "send to topic {topic}"),
            Self::Read(topic) => write!(out, "read topic {topic}"),
            Self::SendOrRead(topic) => write!(out, "send to or read topic {topic}"),
            Self::Group(group) => write!(out, "consume in group {group}"),
            Self::Admin => write!(out, "administer the server"),
        }
    }
}

/// An account that a request was signed by.
pub struct Account {
    access_key: String,
    key: hmac::Key,
    admin: bool,
    default_topic: Permission,
    default_group: Permission,
    topics: HashMap<String, Permission>,
    groups: HashMap<String, Permission>,
}

/// All accounts.
pub struct Accounts {
    known: HashMap<String, Account>,
    /// Stands for whoever is not known, so that an answer takes as long.
    nobody: hmac::Key,
}

impl fmt::Debug for Accounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Accounts({})", self.known.len())
    }
}

impl Accounts {
    /// Of accounts with one access key the last counts.
    pub fn new(options: impl IntoIterator<Item = AccountOptions>) -> Self {
        let known = options.into_iter().map(|one| (one.access_key.clone(), Account::new(one))).collect();
        Self { known, nobody: key("") }
    }

    /// The account that signed a request; none where there is no signature, or it is wrong, or the account is not known.
    pub fn signer(&self, request: &Command) -> Option<&Account> {
        let account = self.known.get(request.ext_fields.get(ACCESS_KEY)?);
        let given = BASE64_STANDARD.decode(request.ext_fields.get(SIGNATURE)?).ok()?;
        let wanted = signed(account.map_or(&self.nobody, |account| &account.key), request);
        account.filter(|_| wanted.as_ref().ct_eq(&given).into())
    }
}

impl Accounts {
    /// Whether an account may do something; one that is not known may nothing.
    pub(super) fn may(&self, access_key: Option<&str>, need: &Need<'_>) -> bool {
        access_key.and_then(|key| self.known.get(key)).is_some_and(|account| account.may(need))
    }
}

impl Account {
    fn new(options: AccountOptions) -> Self {
        let AccountOptions { access_key, secret_key, admin, default_topic, default_group, topics, groups } = options;
        Self { access_key, key: key(&secret_key), admin, default_topic, default_group, topics, groups }
    }

    /// Its name.
    pub fn access_key(&self) -> &str {
        &self.access_key
    }

    /// Whether it may do what a request needs.
    pub fn may(&self, need: &Need<'_>) -> bool {
        let topic = |name: &str| self.topics.get(name).copied().unwrap_or(self.default_topic);
        let group = |name: &str| self.groups.get(name).copied().unwrap_or(self.default_group);
        self.admin
            || match need {
                Need::Send(name) => topic(name).allows(Permission::PUB),
                Need::Read(name) => topic(name).allows(Permission::SUB),
                Need::SendOrRead(name) => topic(name).allows(Permission::BOTH),
                Need::Group(name) => group(name).allows(Permission::SUB),
                Need::Admin => false,
            }
    }
}

fn key(secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes())
}

/// `HmacSHA1` over the values of all other fields, in the order of their names, then the body.
fn signed(key: &hmac::Key, request: &Command) -> hmac::Tag {
    let mut fields: Vec<_> = request.ext_fields.iter().filter(|(name, _)| *name != SIGNATURE).collect();
    fields.sort_unstable();
    let mut content = hmac::Context::with_key(key);
    for (_, value) in fields {
        content.update(value.as_bytes());
    }
    content.update(&request.body);
    content.sign()
}

/// A request with the fields that sign it.
#[must_use]
pub fn sign(mut request: Command, access_key: &str, secret_key: &str) -> Command {
    request.ext_fields.set(ACCESS_KEY, access_key);
    let signature = BASE64_STANDARD.encode(signed(&key(secret_key), &request));
    request.ext_fields.set(SIGNATURE, signature);
    request
}
