//! Parsing a key of the RIB never panics; a key has one spelling, which parses to the same key.

use fairmesh_model::{Prefix, RecordKey};

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Ok(key) = RecordKey::parse(text) {
        let spelling = key.to_string();
        assert_eq!(RecordKey::parse(&spelling).as_ref(), Ok(&key), "{spelling}");
        assert_eq!(RecordKey::parse(&spelling).map(|key| key.to_string()), Ok(spelling.clone()));
        let exactly = Prefix::new(&*spelling).expect("every key can be asked for");
        assert_eq!(exactly, Prefix::from(&key));
        assert!(exactly.covers(&spelling) && !exactly.is_folder());
        let folders = spelling.match_indices('/').map(|(i, _)| &spelling[..=i]);
        for folder in folders {
            assert!(
                Prefix::new(folder).expect("every folder can be asked for").covers(&spelling),
                "{folder}"
            );
        }
    }
    if let Ok(prefix) = Prefix::new(text) {
        assert_eq!(prefix.to_string(), text);
        assert!(prefix.covers(text));
    }
}
