use fairmesh_router::Headers;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::is_spelling_of;

/// Headers as the input of route conditions.
#[derive(Clone, Copy, Debug)]
pub struct HeaderMapView<'a>(pub &'a HeaderMap);

impl Headers for HeaderMapView<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(HeaderValue::as_bytes)
    }

    fn any(&self, name: &str, sees: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.get_all(name).iter().any(|value| sees(value.as_bytes()))
    }
}

/// Headers as the input of authorization rules: a name matches every header that a program may read as that name.
#[derive(Clone, Copy, Debug)]
pub struct AllSpellings<'a>(pub &'a HeaderMap);

impl Headers for AllSpellings<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(HeaderValue::as_bytes)
    }

    fn any(&self, name: &str, sees: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        // An invalid name matches no header.
        let Ok(name) = HeaderName::try_from(name) else { return false };
        let mut lines = self.0.iter().filter(|(spelling, _)| is_spelling_of(spelling.as_str(), &name));
        lines.any(|(_, value)| sees(value.as_bytes()))
    }
}
