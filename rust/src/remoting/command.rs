//! A request or response, independent of the encoding of its header.
//!
//! In:     fields.
//! Out:    fields.
//! Always: a response has the `opaque` and the encoding of its request.
//! Not here: bytes, and the meaning of codes.

/// Flag bit: the command is a response.
pub const FLAG_RESPONSE: i32 = 1;
/// Flag bit: the client wants no response.
pub const FLAG_ONE_WAY: i32 = 1 << 1;

/// RocketMQ's names of languages, by their numbers.
pub(super) const LANGUAGES: &[&str] = &[
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
];
/// The language code for any language without its own code.
pub const LANGUAGE_OTHER: u8 = 7;

/// Returns the name of a language by its number.
pub(crate) fn language_name(language: u8) -> &'static str {
    LANGUAGES.get(usize::from(language)).copied().unwrap_or("OTHER")
}
/// The number of RocketMQ's version `V5_3_3`, whose protocol txstore speaks.
pub const VERSION: i32 = 479;

/// The maximum number of ext fields. No request has fifty, and each new name is compared with all names before it.
pub const EXT_FIELDS_MAX: usize = 1_000;

/// The encoding of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SerializeType {
    /// As a JSON object.
    #[default]
    Json,
    /// In RocketMQ's binary format.
    Binary,
}

/// A command's ext fields, in order. There are few, so a linear search is fast.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtFields(Vec<(String, String)>);

impl ExtFields {
    /// Returns the value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Sets a value. Replaces an existing value of that name.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// Returns names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no fields.
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
    /// The request code, or the response code (0 is success).
    pub code: i32,
    /// The number of the sender's language.
    pub language: u8,
    /// The number of the sender's RocketMQ version.
    pub version: i32,
    /// Identifies a request on its connection. The response has the same value.
    pub opaque: i32,
    /// The `FLAG_…` bits.
    pub flag: i32,
    /// A text for people.
    pub remark: Option<String>,
    /// The ext fields.
    pub ext_fields: ExtFields,
    /// The body.
    pub body: Vec<u8>,
    /// The encoding of the header.
    pub serialize_type: SerializeType,
}

impl Command {
    /// Creates a request without fields.
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

    /// Creates the response to this request, in the same encoding.
    #[must_use]
    pub fn response(&self, code: i32, remark: Option<String>) -> Self {
        let flag = FLAG_RESPONSE;
        Self { flag, remark, serialize_type: self.serialize_type, ..Self::request(code, self.opaque) }
    }

    /// Returns the approximate memory use in bytes.
    pub fn memory(&self) -> usize {
        let fields: usize = self.ext_fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.body.len() + fields + self.remark.as_ref().map_or(0, String::len)
    }

    /// Returns RocketMQ's name of the sender's language. `OTHER` for a number that has no name.
    pub fn language_name(&self) -> &'static str {
        language_name(self.language)
    }

    /// Returns whether the command is a response.
    pub const fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Returns whether the sender wants no response.
    pub const fn is_one_way(&self) -> bool {
        self.flag & FLAG_ONE_WAY != 0
    }
}
