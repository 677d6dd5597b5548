//! Counts the calls that rules do not allow, by caller, rule and request.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use fairmesh_model::{DeniedPath, Label, MAX_DENIED_CALLER, ServiceName};
use http::Request;

/// Maximum number of rows between two reports.
const MAX_DENIED: usize = 256;
/// Maximum number of different requests of a caller and a rule between two reports, so that a caller that tries many
/// paths leaves room for other callers.
const MAX_REQUESTS: usize = 8;
/// Caller name for denied calls beyond the maximum, and path for requests beyond it.
const OTHER: &str = "(other)";
/// Methods that are counted separately. Others are counted as `OTHER`.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
/// Maximum number of a path's segments, and maximum length of one in bytes, that are named.
const MAX_SEGMENTS: usize = 4;
const MAX_SEGMENT: usize = 40;

/// Method and path of a request, as they are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeniedRequest {
    method: String,
    /// Path whose segments are `*` if they may be ids or secrets: counts are bounded, and readers of reports see less
    /// than the log of the server shows.
    path: String,
}

impl DeniedRequest {
    /// The form in which a request is counted. The method of a connection is empty, and so is its form.
    pub(crate) fn of(method: &str, path: &str) -> Self {
        if method.is_empty() {
            return Self::default();
        }
        let method = if METHODS.contains(&method) { method } else { "OTHER" };
        Self { method: method.to_owned(), path: path_template(path) }
    }

    pub(crate) fn of_request<B>(request: &Request<B>) -> Self {
        Self::of(request.method().as_str(), request.uri().path())
    }
}

fn path_template(path: &str) -> String {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    let mut template = String::new();
    for segment in segments.by_ref().take(MAX_SEGMENTS) {
        template.push('/');
        template.push_str(if is_word(segment) { segment } else { "*" });
    }
    if segments.next().is_some() {
        template.push_str("/**");
    }
    if template.is_empty() { "/".to_owned() } else { template }
}

/// Whether a segment is made of words, such as `items`, `v1` and `shop.Cart`. Ids and tokens have more digits, digits
/// between letters, or more capitals.
fn is_word(segment: &str) -> bool {
    let is_part = |part: &str| {
        let letters = part.trim_end_matches(|char: char| char.is_ascii_digit());
        part.is_empty()
            || (!letters.is_empty()
                && part.len() - letters.len() <= 2
                && letters.bytes().all(|byte| byte.is_ascii_alphabetic()))
    };
    let capitals = segment.bytes().filter(u8::is_ascii_uppercase).count();
    segment.len() <= MAX_SEGMENT
        && capitals * 3 <= segment.len()
        && segment.split(['-', '_', '.']).all(is_part)
}

/// Denied calls since the last report. Only these calls take the lock.
#[derive(Debug, Default)]
pub(crate) struct DeniedCounts(Mutex<BTreeMap<Denied, u64>>);

/// Caller, rule, whether calls were let through, and their request.
type Denied = (Option<String>, Option<Label>, bool, DeniedRequest);

impl DeniedCounts {
    pub(crate) fn count(
        &self,
        caller: Option<&str>,
        rule: Option<&Label>,
        is_audit: bool,
        request: DeniedRequest,
    ) {
        let mut denied = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let caller = caller.filter(|caller| caller.len() <= MAX_DENIED_CALLER);
        let mut key = (caller.map(str::to_owned), rule.cloned(), is_audit, request);
        if !denied.contains_key(&key) {
            if requests(&denied, &key) >= MAX_REQUESTS {
                key.3 = DeniedRequest { method: String::new(), path: OTHER.to_owned() };
            }
            if denied.len() >= MAX_DENIED && !denied.contains_key(&key) {
                key = (Some(OTHER.to_owned()), None, is_audit, DeniedRequest::default());
            }
        }
        *denied.entry(key).or_default() += 1;
    }

    /// Takes the counts out.
    pub(crate) fn take(&self, service: &ServiceName) -> BTreeMap<DeniedPath, u64> {
        let denied = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let path = |(caller, rule, is_audit, DeniedRequest { method, path })| DeniedPath {
            service: service.clone(),
            caller,
            rule,
            is_audit,
            method,
            path,
        };
        denied.into_iter().map(|(key, count)| (path(key), count)).collect()
    }
}

/// Number of different requests with the caller, rule and mode of a key.
fn requests(denied: &BTreeMap<Denied, u64>, key: &Denied) -> usize {
    let first = (key.0.clone(), key.1.clone(), key.2, DeniedRequest::default());
    let is_same = |(one, _): &(&Denied, &u64)| (&one.0, &one.1, one.2) == (&key.0, &key.1, key.2);
    denied.range(first..).take_while(is_same).take(MAX_REQUESTS).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> DeniedRequest {
        DeniedRequest::of("GET", path)
    }

    #[test]
    fn number_of_counted_denials_is_bounded() {
        let denied = DeniedCounts::default();
        let service = ServiceName::new("shop/cart").unwrap();
        for n in 0..MAX_DENIED + 3 {
            denied.count(Some(&format!("spiffe://mesh/shop/c{n}")), None, true, get("/"));
        }
        let taken = denied.take(&service);
        let others = taken.iter().find(|(path, _)| path.caller.as_deref() == Some(OTHER));
        assert_eq!((taken.len(), others.map(|(_, count)| *count)), (MAX_DENIED + 1, Some(3)));
        assert!(denied.take(&service).is_empty());
    }

    #[test]
    fn caller_that_tries_many_paths_leaves_room_for_others() {
        let denied = DeniedCounts::default();
        let service = ServiceName::new("shop/cart").unwrap();
        let word = |n: usize| format!("/{}", "a".repeat(1 + n % MAX_SEGMENT));
        for n in 0..MAX_SEGMENT {
            denied.count(Some("spiffe://mesh/shop/scanner"), None, false, get(&word(n)));
        }
        denied.count(Some("spiffe://mesh/shop/web"), None, false, DeniedRequest::of("DELETE", "/items/7"));
        let taken = denied.take(&service);
        let other = taken.iter().find(|(path, _)| path.path == OTHER).map(|(_, count)| *count);
        assert_eq!((taken.len(), other), (MAX_REQUESTS + 2, Some((MAX_SEGMENT - MAX_REQUESTS) as u64)));
        assert!(taken.keys().any(|path| (&*path.method, &*path.path) == ("DELETE", "/items/*")));
    }

    #[test]
    fn path_template_names_words_and_hides_ids() {
        for (path, template) in [
            ("/", "/"),
            ("", "/"),
            ("*", "/*"),
            ("/items/42?token=secret", "/items/*"),
            ("/shop.v1.CartService/GetItems", "/shop.v1.CartService/GetItems"),
            ("/api/v2/order-lines", "/api/v2/order-lines"),
            ("/.well-known/jwks.json", "/.well-known/jwks.json"),
            ("/users/9f1c2e7a-4b1d-4c55-9a0e-1d2f3a4b5c6d", "/users/*"),
            ("/reset/dGhpc0lzQVNlY3JldA", "/reset/*"),
            ("/users/anna@example.com", "/users/*"),
            ("/a%2fb/c", "/*/c"),
            ("/one/two/three/four/five/six", "/one/two/three/four/**"),
        ] {
            assert_eq!(get(path).path, template, "{path}");
        }
        assert_eq!(DeniedRequest::of("SCAN\u{7f}", "/a").method, "OTHER");
        assert_eq!(DeniedRequest::of("", ""), DeniedRequest::default());
        let longest = format!("/{}", "a".repeat(MAX_SEGMENT)).repeat(9);
        assert!(get(&longest).path.len() <= MAX_DENIED_CALLER);
    }
}
