//! Command: one request or response, whichever way its header was written.
//!
//! In: fields. Out: fields. Always: `opaque` is the request's in its response, and a response is written as its request
//! was. Not here: bytes, and what a code means.

/// `flag`: this is a response.
pub const FLAG_RESPONSE: i32 = 1;
/// `flag`: no response is wanted.
pub const FLAG_ONE_WAY: i32 = 1 << 1;

/// The language of whatever has no code of its own.
pub const LANGUAGE_OTHER: u8 = 7;
/// `V5_3_3` among RocketMQ's versions: what this speaks.
pub const VERSION: i32 = 479;

/// A header with more named values is refused: no request has fifty, and each is looked for among those before it.
pub const EXT_FIELDS_MAX: usize = 1_000;

/// How a header is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SerializeType {
    /// As a JSON object.
    #[default]
    Json,
    /// As RocketMQ's own bytes.
    Binary,
}

/// A command's named values, in order; few, so that looking through them is quick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtFields(Vec<(String, String)>);

impl ExtFields {
    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Sets a value; one of that name before it is replaced, as in a map.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// Names and values in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for ExtFields {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut fields = Self::default();
        for (name, value) in pairs {
            fields.set(name, value);
        }
        fields
    }
}

/// One request or response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// What is asked for; in a response what came of it, 0 being success.
    pub code: i32,
    /// The language of who wrote it, by its number.
    pub language: u8,
    /// RocketMQ's version that who wrote it speaks, by its number.
    pub version: i32,
    /// Names a request among its connection's; its response bears it, too.
    pub opaque: i32,
    /// `FLAG_…` bits.
    pub flag: i32,
    /// Words for people.
    pub remark: Option<String>,
    /// The named values.
    pub ext_fields: ExtFields,
    /// What follows the header.
    pub body: Vec<u8>,
    /// How the header is written.
    pub serialize_type: SerializeType,
}

impl Command {
    /// A request without fields.
    pub fn request(code: i32, opaque: i32) -> Self {
        Self {
            code,
            language: LANGUAGE_OTHER,
            version: VERSION,
            opaque,
            flag: 0,
            remark: None,
            ext_fields: ExtFields::default(),
            body: Vec::new(),
            serialize_type: SerializeType::default(),
        }
    }

    /// The response to this request, written as it was.
    #[must_use]
    pub fn response(&self, code: i32, remark: Option<String>) -> Self {
        let flag = FLAG_RESPONSE;
        Self { flag, remark, serialize_type: self.serialize_type, ..Self::request(code, self.opaque) }
    }

    /// Bytes of memory that it takes, nearly.
    pub fn memory(&self) -> usize {
        let fields: usize = self.ext_fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.body.len() + fields + self.remark.as_ref().map_or(0, String::len)
    }

    /// Whether it answers another.
    pub const fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Whether nobody waits for a response.
    pub const fn is_one_way(&self) -> bool {
        self.flag & FLAG_ONE_WAY != 0
    }
}
