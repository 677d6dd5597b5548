use fairmesh_model::{KeySource, ShardKey, arith::hash_text};

use crate::{
    Headers, RequestView,
    routes::{cookie, decoded, parameter},
};

/// Reads the key of a request from the first source that has a value.
pub(crate) fn read_first<H: Headers + ?Sized>(
    sources: &[KeySource],
    request: &RequestView<'_, H>,
) -> Option<ShardKey> {
    sources.iter().find_map(|source| read(source, request))
}

/// Reads the key of a request from one source of the policy. A number is the key itself. Other text is hashed, so that
/// a session stays with its endpoint. Empty text is no key.
fn read<H: Headers + ?Sized>(source: &KeySource, request: &RequestView<'_, H>) -> Option<ShardKey> {
    match source {
        KeySource::Header(name) => request.headers.get(name).and_then(key_from_text),
        KeySource::Cookie(name) => {
            let mut found = None;
            // HTTP/2 clients may split cookies over several header fields (RFC 9113 8.2.3).
            request.headers.any("cookie", &mut |header| {
                let header = str::from_utf8(header).unwrap_or_default();
                found = cookie(header, name).and_then(|value| key_from_text(value.as_bytes()));
                found.is_some()
            });
            found
        }
        KeySource::Query(name) => {
            let (_, query) = request.path.split_once('?')?;
            key_from_text(&decoded(parameter(query, name)?).collect::<Vec<u8>>())
        }
    }
}

fn key_from_text(text: &[u8]) -> Option<ShardKey> {
    let text = str::from_utf8(text).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| ShardKey(hash_text(text).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_key_is_read_from_each_kind_of_source() {
        let headers =
            [("x-user", "618"), ("cookie", "a=1; sid=tea")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        let request = RequestView {
            host: "",
            path: "/?user=%36%31%38&e=",
            method: "GET",
            headers: &headers[..],
            grpc: false,
        };
        let read = |source| read(&source, &request);
        let tea = ShardKey(hash_text("tea").into());
        assert_eq!(read(KeySource::Header("x-user".into())), Some(ShardKey(618)));
        assert_eq!(read(KeySource::Query("user".into())), Some(ShardKey(618)));
        assert_eq!(read(KeySource::Cookie("sid".into())), Some(tea));
        for none in
            [KeySource::Header("x".into()), KeySource::Cookie("x".into()), KeySource::Query("e".into())]
        {
            assert_eq!(read(none), None);
        }
        let several =
            [KeySource::Header("x".into()), KeySource::Cookie("sid".into()), KeySource::Query("user".into())];
        assert_eq!(read_first(&several, &request), Some(tea), "the first that has one");
        assert_eq!(read_first(&several[..1], &request), None);
    }
}
