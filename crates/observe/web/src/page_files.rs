//! The files of the web page, which are embedded in the program.

use std::sync::LazyLock;

use axum::{
    Router,
    extract::Path,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use xxhash_rust::xxh3::Xxh3;

/// Placeholder for [`BUILD`] in the page.
const PLACE_OF_BUILD: &str = "%build%";
/// Value of `cache-control`: browsers revalidate cached files by their tag, so that a page is never older than its
/// control plane.
const CACHE: &str = "no-cache";

const INDEX: &str = include_str!("../../../../web/dist/index.html");

/// A file of the page. All files except the page itself are compressed at build time.
struct File {
    name: &'static str,
    content_type: &'static str,
    gzip: &'static [u8],
}

macro_rules! file {
    ($name:literal, $content_type:literal) => {
        File {
            name: $name,
            content_type: $content_type,
            gzip: include_bytes!(concat!("../../../../web/dist/", $name, ".gz")),
        }
    };
}

static FILES: &[File] = &[
    file!("main.js", "text/javascript; charset=utf-8"),
    file!("main.css", "text/css; charset=utf-8"),
    file!("elk-worker.js", "text/javascript; charset=utf-8"),
    file!("icon.svg", "image/svg+xml"),
];

/// Identifies the build of the page. A page from another build asks its reader to reload.
pub(crate) static BUILD: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Xxh3::new();
    hash.update(INDEX.as_bytes());
    FILES.iter().for_each(|file| hash.update(file.gzip));
    format!("{:016x}", hash.digest())
});

static INDEX_OF_BUILD: LazyLock<String> = LazyLock::new(|| INDEX.replace(PLACE_OF_BUILD, &BUILD));

/// Returns the routes of the page and its files. They contain nothing about the mesh, so everyone may read them.
pub(crate) fn router() -> Router {
    Router::new()
        .route("/ui", get(async || Redirect::permanent("/ui/")))
        .route("/ui/", get(index))
        .route("/ui/{file}", get(file))
}

async fn index(headers: HeaderMap) -> Response {
    if is_known(&headers) {
        return not_modified();
    }
    (tagged("text/html; charset=utf-8"), INDEX_OF_BUILD.as_str()).into_response()
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        return (StatusCode::NOT_FOUND, "the page has no such file\n").into_response();
    };
    if is_known(&headers) {
        return not_modified();
    }
    if !accepts_gzip(&headers) {
        let text = "files of the page are compressed: send 'accept-encoding: gzip'\n";
        return (StatusCode::NOT_ACCEPTABLE, text).into_response();
    }
    let encoding = [(header::CONTENT_ENCODING, "gzip"), (header::VARY, "accept-encoding")];
    (tagged(file.content_type), encoding, file.gzip).into_response()
}

type Tagged = [(header::HeaderName, String); 3];

fn tagged(content_type: &str) -> Tagged {
    [
        (header::CONTENT_TYPE, content_type.to_owned()),
        (header::CACHE_CONTROL, CACHE.to_owned()),
        (header::ETAG, tag()),
    ]
}

/// Returns the ETag of all files, which is the build.
fn tag() -> String {
    format!("\"{}\"", *BUILD)
}

fn is_known(headers: &HeaderMap) -> bool {
    let known = headers.get(header::IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    known.is_some_and(|known| known.split(',').any(|known| known.trim().trim_start_matches("W/") == tag()))
}

fn not_modified() -> Response {
    (StatusCode::NOT_MODIFIED, [(header::CACHE_CONTROL, CACHE.to_owned()), (header::ETAG, tag())])
        .into_response()
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        matches!(name.trim(), "gzip" | "*")
            && !matches!(weight.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_contains_build_and_references_only_bundled_files() {
        assert!(INDEX_OF_BUILD.contains(&*BUILD) && !INDEX_OF_BUILD.contains(PLACE_OF_BUILD));
        let named = INDEX.split(['"', '\'']).filter_map(|text| text.strip_prefix("/ui/"));
        for name in named {
            assert!(FILES.iter().any(|file| file.name == name), "{name}");
        }
        assert!(!INDEX.contains("<style") && !INDEX.contains("<script>") && !INDEX.contains("http"));
    }

    #[test]
    fn bundled_web_files_are_small() {
        let sum: usize = FILES.iter().map(|file| file.gzip.len()).sum();
        assert!(sum < 1_500_000, "{sum} bytes");
    }

    #[test]
    fn gzip_is_sent_if_accepted() {
        let accepts = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, header::HeaderValue::from_static(value));
            accepts_gzip(&headers)
        };
        assert!(accepts("br, gzip;q=0.8") && accepts("*"));
        assert!(!accepts("br") && !accepts("gzip;q=0"));
    }
}
