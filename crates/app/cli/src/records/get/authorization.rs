//! Authorization of callers: rules of services, and the default for the others.

use fairmesh_console::{output::Listing, view_reader::View};
use fairmesh_model::{
    AuthorizationMode,
    spec::{AuthorizationSpec, DefaultAuthorizationSpec, Document, Resource},
};
use serde_json::json;

/// One row per service, and one for the default of the mesh.
pub(super) fn authorization(view: &View) -> Listing {
    let default = view.authorization.unwrap_or_default();
    let words = DefaultAuthorizationSpec::of(default).default;
    let mut listing = Listing::new(&["SERVICE", "MODE", "RULES", "INTERMEDIARIES"]);
    let row = ["(default)".to_owned(), words.clone(), "-".to_owned(), "-".to_owned()];
    listing.add(row.to_vec(), json!({ "default": words }));
    if view.authorization.is_some() {
        listing.documents.push(Document::from(&Resource::Authorization(default)));
    }
    for (name, one) in &view.services {
        let policy = one.policy.as_ref().and_then(|policy| policy.value.authorization.as_deref());
        let Some(authorization) = policy else { continue };
        let mode = match authorization.mode {
            AuthorizationMode::Enforce => "enforce",
            AuthorizationMode::Audit => "audit",
        };
        let rules = authorization.rules.iter();
        let rules = rules.map(|rule| format!("{}{}", if rule.denies { "not " } else { "" }, rule.name));
        let intermediaries = authorization.intermediaries.iter().map(|one| one.as_str().to_owned());
        let joined = |names: Vec<String>| if names.is_empty() { "-".to_owned() } else { names.join(", ") };
        listing.add(
            vec![
                name.to_string(),
                mode.to_owned(),
                joined(rules.collect()),
                joined(intermediaries.collect()),
            ],
            json!({ "service": name.to_string(), "authorization": AuthorizationSpec::of(authorization) }),
        );
        let resource = Resource::ServiceAuthorization(name.clone(), authorization.clone());
        listing.documents.push(Document::from(&resource));
    }
    listing
}
