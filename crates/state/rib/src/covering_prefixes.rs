/// Returns every prefix that covers `key`: the folders above it from the outermost to the innermost, then the key
/// itself.
///
/// `/a/b` gives `/`, `/a/`, `/a/b`.
pub fn covering(key: &str) -> impl Iterator<Item = &str> {
    let folders = key.match_indices('/').map(|(at, _)| &key[..=at]);
    let itself = (!key.ends_with('/')).then_some(key);
    folders.chain(itself)
}

#[cfg(test)]
mod tests {
    use super::covering;

    #[test]
    fn record_key_is_covered_by_prefixes_of_its_folders_and_itself() {
        assert_eq!(covering("/a/b").collect::<Vec<_>>(), ["/", "/a/", "/a/b"]);
        assert_eq!(covering("/a/b/").collect::<Vec<_>>(), ["/", "/a/", "/a/b/"]);
    }
}
