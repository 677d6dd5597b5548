//! Parsing a manifest never panics, an error names a place in the text, and an accepted manifest is accepted again with the
//! same meaning as `fairmesh get -o yaml` prints it.

use fairmesh_model::spec::{Document, Resource};
use fairmesh_registry::manifest;

/// What must hold of these bytes.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let documents = match manifest::parse("fuzz.yaml", text) {
        Ok(documents) => documents,
        Err(error) => {
            let span = error.offset..error.offset + error.length;
            assert!(text.get(span.clone()).is_some(), "{error}: {span:?} is no part of the text");
            assert!(error.line >= 1 && error.column >= 1, "{error}");
            assert!(!error.hint.is_empty(), "{error}: nothing says what to do");
            let all = manifest::errors("fuzz.yaml", text);
            assert!(!all.is_empty(), "{error} is found again");
            assert!(all.iter().all(|error| text.get(error.offset..error.offset + error.length).is_some()));
            return;
        }
    };
    for document in documents {
        let mut resource = document.resource;
        let printed = serde_saphyr::to_string(&Document::from(&resource)).expect("a resource can be printed");
        let again =
            manifest::parse("printed.yaml", &printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
        // The version is the store's and is not printed.
        if let Resource::ShardMap(_, map) = &mut resource {
            map.version = 0;
        }
        assert_eq!(again.len(), 1, "{printed}");
        assert_eq!(again[0].resource, resource, "{printed}");
    }
}
