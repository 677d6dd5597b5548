use fairmesh_router::Headers;
use http::{HeaderMap, HeaderValue};

/// Headers as the input of routes.
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
