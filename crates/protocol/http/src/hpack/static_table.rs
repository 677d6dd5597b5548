//! The static table (RFC 7541, appendix A).

use http::{
    HeaderName, HeaderValue, Method, StatusCode, header,
    uri::{PathAndQuery, Scheme},
};

use super::{
    ENTRY_OVERHEAD,
    header_field::{Entry, Field, Name},
};
use crate::path::Path;

/// Number of entries. The indices of the dynamic table follow.
pub(super) const COUNT: usize = 61;

/// Indices of pseudo-header names.
pub(super) const AUTHORITY: usize = 1;
pub(super) const METHOD: usize = 2;
pub(super) const PATH: usize = 4;
pub(super) const SCHEME: usize = 6;
pub(super) const STATUS: usize = 8;

/// Returns the entry with index `place` + 1.
#[inline]
pub(super) fn get(place: usize) -> Option<&'static Entry> {
    ENTRIES.get(place)
}

/// Returns the index of `:method` with this value.
pub(super) fn method(method: &Method) -> Option<usize> {
    match *method {
        Method::GET => Some(2),
        Method::POST => Some(3),
        _ => None,
    }
}

/// Returns the index of `:path` with this value.
pub(super) fn path(path: &str) -> Option<usize> {
    match path {
        "/" => Some(4),
        "/index.html" => Some(5),
        _ => None,
    }
}

/// Returns the index of `:scheme` with this value.
pub(super) fn scheme(scheme: &str) -> Option<usize> {
    match scheme {
        "http" => Some(6),
        "https" => Some(7),
        _ => None,
    }
}

/// Returns the index of `:status` with this value.
pub(super) fn status(status: StatusCode) -> Option<usize> {
    match status.as_u16() {
        200 => Some(8),
        204 => Some(9),
        206 => Some(10),
        304 => Some(11),
        400 => Some(12),
        404 => Some(13),
        500 => Some(14),
        _ => None,
    }
}

/// Defines the table, and the lookup of its headers by name.
macro_rules! table {
    ($($index:literal $name:ident $value:literal)*) => {
        static ENTRIES: [Entry; COUNT] = [
            // This entry serves only as a name: its value, an empty authority, is never used.
            Entry::malformed(Name::Authority, ":authority".len() + ENTRY_OVERHEAD, "an invalid :authority"),
            Entry::of(Field::Method(Method::GET)),
            Entry::of(Field::Method(Method::POST)),
            Entry::of(Field::Path(Path::Uri(PathAndQuery::from_static("/")))),
            Entry::of(Field::Path(Path::Uri(PathAndQuery::from_static("/index.html")))),
            Entry::of(Field::Scheme(Scheme::HTTP)),
            Entry::of(Field::Scheme(Scheme::HTTPS)),
            Entry::of(Field::Status(StatusCode::OK)),
            Entry::of(Field::Status(StatusCode::NO_CONTENT)),
            Entry::of(Field::Status(StatusCode::PARTIAL_CONTENT)),
            Entry::of(Field::Status(StatusCode::NOT_MODIFIED)),
            Entry::of(Field::Status(StatusCode::BAD_REQUEST)),
            Entry::of(Field::Status(StatusCode::NOT_FOUND)),
            Entry::of(Field::Status(StatusCode::INTERNAL_SERVER_ERROR)),
            $(Entry::of(Field::Header(header::$name, HeaderValue::from_static($value))),)*
        ];

        /// Returns the index of a header's name, or 0.
        pub(super) fn header(name: &HeaderName) -> usize {
            match *name {
                $(header::$name => $index,)*
                _ => 0,
            }
        }
    };
}

table! {
    15 ACCEPT_CHARSET ""
    16 ACCEPT_ENCODING "gzip, deflate"
    17 ACCEPT_LANGUAGE ""
    18 ACCEPT_RANGES ""
    19 ACCEPT ""
    20 ACCESS_CONTROL_ALLOW_ORIGIN ""
    21 AGE ""
    22 ALLOW ""
    23 AUTHORIZATION ""
    24 CACHE_CONTROL ""
    25 CONTENT_DISPOSITION ""
    26 CONTENT_ENCODING ""
    27 CONTENT_LANGUAGE ""
    28 CONTENT_LENGTH ""
    29 CONTENT_LOCATION ""
    30 CONTENT_RANGE ""
    31 CONTENT_TYPE ""
    32 COOKIE ""
    33 DATE ""
    34 ETAG ""
    35 EXPECT ""
    36 EXPIRES ""
    37 FROM ""
    38 HOST ""
    39 IF_MATCH ""
    40 IF_MODIFIED_SINCE ""
    41 IF_NONE_MATCH ""
    42 IF_RANGE ""
    43 IF_UNMODIFIED_SINCE ""
    44 LAST_MODIFIED ""
    45 LINK ""
    46 LOCATION ""
    47 MAX_FORWARDS ""
    48 PROXY_AUTHENTICATE ""
    49 PROXY_AUTHORIZATION ""
    50 RANGE ""
    51 REFERER ""
    52 REFRESH ""
    53 RETRY_AFTER ""
    54 SERVER ""
    55 SET_COOKIE ""
    56 STRICT_TRANSPORT_SECURITY ""
    57 TRANSFER_ENCODING ""
    58 USER_AGENT ""
    59 VARY ""
    60 VIA ""
    61 WWW_AUTHENTICATE ""
}
