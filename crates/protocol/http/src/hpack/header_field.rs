//! Header fields (RFC 7541), parsed once: the entries of the dynamic table, and what decoding gives.

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Method, StatusCode,
    uri::{Authority, Scheme},
};

use super::ENTRY_OVERHEAD;
use crate::path::Path;

/// A header field, parsed once and then stored in the dynamic table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// `:method`
    Method(Method),
    /// `:scheme`
    Scheme(Scheme),
    /// `:authority`
    Authority(Authority),
    /// `:path`, which begins with a slash or is an asterisk.
    Path(Path),
    /// `:status`
    Status(StatusCode),
    /// `:protocol` of an extended CONNECT (RFC 8441).
    Protocol(Bytes),
    /// Any other field. A never-indexed field has a sensitive value.
    Header(HeaderName, HeaderValue),
    /// A field that is valid in HPACK but not in HTTP: its [size](Field::size) and the reason. Only its message fails.
    Malformed(usize, &'static str),
}

/// The name of a field, to which later fields may refer by index.
#[derive(Clone, Debug)]
pub(super) enum Name {
    Method,
    Scheme,
    Authority,
    Path,
    Status,
    Protocol,
    Header(HeaderName),
    /// A malformed name: its length and the reason.
    Malformed(usize, &'static str),
}

/// An entry of the static or dynamic table.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) field: Field,
    /// The name of a malformed field, since the field does not contain it. Other fields may refer to the name and be
    /// valid.
    name: Option<Name>,
}

impl Field {
    /// The field's size in a dynamic table, in bytes (RFC 7541 4.1).
    pub fn size(&self) -> usize {
        let text = match self {
            Self::Method(method) => Name::Method.len() + method.as_str().len(),
            Self::Scheme(scheme) => Name::Scheme.len() + scheme.as_str().len(),
            Self::Authority(authority) => Name::Authority.len() + authority.as_str().len(),
            Self::Path(path) => Name::Path.len() + path.as_str().len(),
            Self::Status(status) => Name::Status.len() + status.as_str().len(),
            Self::Protocol(protocol) => Name::Protocol.len() + protocol.len(),
            Self::Header(name, value) => name.as_str().len() + value.len(),
            Self::Malformed(size, _) => return *size,
        };
        text + ENTRY_OVERHEAD
    }
}

impl Name {
    pub(super) fn read(text: &[u8]) -> Self {
        match text {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":authority" => Self::Authority,
            b":path" => Self::Path,
            b":status" => Self::Status,
            b":protocol" => Self::Protocol,
            [b':', ..] => Self::Malformed(text.len(), "an unknown pseudo-header"),
            _ => match HeaderName::from_lowercase(text) {
                Ok(name) => Self::Header(name),
                Err(_) if text.iter().any(u8::is_ascii_uppercase) => {
                    Self::Malformed(text.len(), "a header name is not in lower case")
                }
                Err(_) => Self::Malformed(text.len(), "an invalid header name"),
            },
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Method => ":method".len(),
            Self::Scheme => ":scheme".len(),
            Self::Authority => ":authority".len(),
            Self::Path => ":path".len(),
            Self::Status => ":status".len(),
            Self::Protocol => ":protocol".len(),
            Self::Header(name) => name.as_str().len(),
            Self::Malformed(length, _) => *length,
        }
    }

    /// Builds a field with this name. On failure, returns the name and the reason.
    fn field(self, value: &[u8]) -> Result<Field, (Self, &'static str)> {
        let field = match &self {
            Self::Method => Method::from_bytes(value).map(Field::Method).map_err(|_| "an invalid :method"),
            Self::Scheme => Scheme::try_from(value).map(Field::Scheme).map_err(|_| "an invalid :scheme"),
            Self::Authority => {
                Authority::try_from(value).map(Field::Authority).map_err(|_| "an invalid :authority")
            }
            Self::Path => Path::read(value).map(Field::Path),
            Self::Status => {
                StatusCode::from_bytes(value).map(Field::Status).map_err(|_| "an invalid :status")
            }
            Self::Protocol => protocol(value).map(Field::Protocol),
            Self::Header(_) => return self.header(value),
            Self::Malformed(_, why) => Err(*why),
        };
        field.map_err(|why| (self, why))
    }

    /// A separate function, since the name is moved into the field.
    fn header(self, value: &[u8]) -> Result<Field, (Self, &'static str)> {
        match (HeaderValue::from_maybe_shared(Bytes::copy_from_slice(value)), self) {
            (Ok(value), Self::Header(name)) => Ok(Field::Header(name, value)),
            (_, name) => Err((name, "an invalid header value")),
        }
    }
}

impl Entry {
    /// Creates an entry for a valid field.
    pub(super) const fn of(field: Field) -> Self {
        Self { field, name: None }
    }

    pub(super) const fn malformed(name: Name, size: usize, why: &'static str) -> Self {
        Self { field: Field::Malformed(size, why), name: Some(name) }
    }

    pub(super) fn read(name: Name, value: &[u8]) -> Self {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        let entry = match name.field(value) {
            Ok(field) => Self::of(field),
            Err((name, why)) => Self::malformed(name, size, why),
        };
        debug_assert_eq!(entry.field.size(), size);
        entry
    }

    pub(super) fn name(&self) -> Name {
        match (&self.field, &self.name) {
            (_, Some(name)) => name.clone(),
            (Field::Method(_), None) => Name::Method,
            (Field::Scheme(_), None) => Name::Scheme,
            (Field::Authority(_), None) => Name::Authority,
            (Field::Path(_), None) => Name::Path,
            (Field::Status(_), None) => Name::Status,
            (Field::Protocol(_), None) => Name::Protocol,
            (Field::Header(name, _), None) => Name::Header(name.clone()),
            // Malformed entries always have a name.
            (Field::Malformed(_, why), None) => Name::Malformed(0, why),
        }
    }
}

/// Parses the name of a protocol: a token that is compared byte by byte (RFC 8441 4).
fn protocol(value: &[u8]) -> Result<Bytes, &'static str> {
    let is_name = !value.is_empty() && value.iter().all(u8::is_ascii_graphic);
    is_name.then(|| Bytes::copy_from_slice(value)).ok_or("an invalid :protocol")
}
