use fairmesh_model::{KeySource, ShardKey, arith::hash_text};

use crate::{
    Headers, RequestView,
    routes::{cookie, decoded, parameter},
};

/// The key that a request carries where the policy says: a number is the key itself, any other text is hashed, so that a
/// session stays with its endpoint. An empty text is none.
pub(crate) fn read<H: Headers + ?Sized>(
    source: &KeySource,
    request: &RequestView<'_, H>,
) -> Option<ShardKey> {
    match source {
        KeySource::Header(name) => request.headers.get(name).and_then(of_bytes),
        KeySource::Cookie(name) => {
            let mut found = None;
            // HTTP/2 may send each cookie in a header of its own (RFC 9113 8.2.3).
            request.headers.any("cookie", &mut |header| {
                let header = str::from_utf8(header).unwrap_or_default();
                found = cookie(header, name).and_then(|value| of_bytes(value.as_bytes()));
                found.is_some()
            });
            found
        }
        KeySource::Query(name) => {
            let (_, query) = request.path.split_once('?')?;
            of_bytes(&decoded(parameter(query, name)?).collect::<Vec<u8>>())
        }
    }
}

fn of_bytes(text: &[u8]) -> Option<ShardKey> {
    let text = str::from_utf8(text).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| ShardKey(hash_text(text).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_where_the_policy_says() {
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
    }
}
