//! The accounts of a server, their permissions, and the check of RocketMQ's ACL signature.
//!
//! In:     accounts, as Python read them, and requests.
//! Out:    the account that signed a request, and the permission that it lacks.
//! Always: secrets are compared in constant time, and no text contains them.
//! Not here: what a request needs (`access`), files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use subtle::ConstantTimeEq;

use crate::remoting::command::Command;

/// The field with the account's access key.
pub const ACCESS_KEY: &str = "AccessKey";
/// The field with the signature. The signature does not cover it.
pub const SIGNATURE: &str = "Signature";

/// The permission of an account for a topic or a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permission(u8);

impl Permission {
    /// No permission.
    pub const DENY: Self = Self(0);
    /// Permission to send.
    pub const PUB: Self = Self(1);
    /// Permission to read.
    pub const SUB: Self = Self(2);
    /// Permission to send and to read.
    pub const BOTH: Self = Self(3);

    /// Creates a permission from its bits: 1 send, 2 read. Other bits are ignored.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::BOTH.0)
    }

    /// Returns whether any of `wanted` is allowed.
    const fn allows(self, wanted: Self) -> bool {
        self.0 & wanted.0 != 0
    }
}

/// An account, as configured by the operator.
pub struct AccountOptions {
    /// Identifies the account.
    pub access_key: String,
    /// The secret that signs requests.
    pub secret_key: String,
    /// Whether the account may do everything.
    pub admin: bool,
    /// The permission for topics that are not in `topics`.
    pub default_topic: Permission,
    /// The permission for groups that are not in `groups`.
    pub default_group: Permission,
    /// Permissions by topic name.
    pub topics: HashMap<String, Permission>,
    /// Permissions by group name.
    pub groups: HashMap<String, Permission>,
}

/// The permission that a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// To send to a topic.
    Send(Cow<'a, str>),
    /// To read a topic.
    Read(Cow<'a, str>),
    /// To send to a topic or to read it.
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

/// The account that signed a request.
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
    /// The key for unknown accounts, so that their check takes as long.
    nobody: hmac::Key,
}

impl fmt::Debug for Accounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Accounts({})", self.known.len())
    }
}

impl Accounts {
    /// Creates the accounts. If an access key is repeated, the last account counts.
    pub fn new(options: impl IntoIterator<Item = AccountOptions>) -> Self {
        let known = options.into_iter().map(|one| (one.access_key.clone(), Account::new(one))).collect();
        Self { known, nobody: key("") }
    }

    /// Returns the account that signed a request, or `None` if the signature is missing or wrong or the account is
    /// unknown.
    pub fn signer(&self, request: &Command) -> Option<&Account> {
        let account = self.known.get(request.ext_fields.get(ACCESS_KEY)?);
        let given = BASE64_STANDARD.decode(request.ext_fields.get(SIGNATURE)?).ok()?;
        let wanted = signed(account.map_or(&self.nobody, |account| &account.key), request);
        account.filter(|_| wanted.as_ref().ct_eq(&given).into())
    }

    /// Returns the account that signed a gRPC request, or `None` as `signer`. The signature covers only the request's date,
    /// as it is written.
    pub fn signer_of_date(&self, authorization: &str, date: &str) -> Option<&Account> {
        let given = DateSignature::parse(authorization)?;
        let account = self.known.get(given.access_key);
        let wanted = hmac::sign(account.map_or(&self.nobody, |account| &account.key), date.as_bytes());
        account.filter(|_| wanted.as_ref().ct_eq(&given.signature).into())
    }

    /// Returns whether an account may do something. An unknown account may do nothing.
    pub(super) fn may(&self, access_key: Option<&str>, need: &Need<'_>) -> bool {
        access_key.and_then(|key| self.known.get(key)).is_some_and(|account| account.may(need))
    }
}

impl Account {
    fn new(options: AccountOptions) -> Self {
        let AccountOptions { access_key, secret_key, admin, default_topic, default_group, topics, groups } = options;
        Self { access_key, key: key(&secret_key), admin, default_topic, default_group, topics, groups }
    }

    /// Returns the access key.
    pub fn access_key(&self) -> &str {
        &self.access_key
    }

    /// Returns whether the account has the permission that a request needs.
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

/// The header `authorization` of a gRPC request:
/// `MQv2-HMAC-SHA1 Credential=<access key>[/…], SignedHeaders=x-mq-date-time, Signature=<hex>`.
struct DateSignature<'a> {
    access_key: &'a str,
    signature: Vec<u8>,
}

impl<'a> DateSignature<'a> {
    fn parse(header: &'a str) -> Option<Self> {
        let (algorithm, rest) = header.trim().split_once(' ')?;
        let field = |name: &str| {
            let fields = rest.split(',').filter_map(|field| field.trim().split_once('='));
            fields.filter(|(found, _)| *found == name).map(|(_, value)| value.trim()).next()
        };
        if algorithm != "MQv2-HMAC-SHA1" || !field("SignedHeaders")?.eq_ignore_ascii_case("x-mq-date-time") {
            return None;
        }
        let access_key = field("Credential")?.split('/').next()?;
        Some(Self { access_key, signature: from_hex(field("Signature")?)? })
    }
}

/// Reads hex digits of either case.
fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    bytes.filter(|_| rest.is_empty())
}

fn key(secret: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes())
}

/// Computes `HmacSHA1` over the values of all other fields, in the order of their names, then the body.
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

/// Adds the fields that sign a request.
#[must_use]
pub fn sign(mut request: Command, access_key: &str, secret_key: &str) -> Command {
    request.ext_fields.set(ACCESS_KEY, access_key);
    let signature = BASE64_STANDARD.encode(signed(&key(secret_key), &request));
    request.ext_fields.set(SIGNATURE, signature);
    request
}
