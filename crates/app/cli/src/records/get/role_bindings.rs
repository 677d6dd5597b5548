//! List of the bindings of roles.

use fairmesh_console::{output::Listing, view_reader::View};
use fairmesh_model::{
    access::AccessRole,
    spec::{Document, Resource, RoleBindingSpec},
};
use serde_json::json;

/// One row per binding.
pub(super) fn roles(view: &View) -> Listing {
    let mut listing = Listing::new(&["NAME", "ROLE", "OF", "SUBJECTS", "REVISION"]);
    for (name, binding) in &view.roles {
        let spec = RoleBindingSpec::of(name, &binding.value);
        let scope = match binding.value.role {
            AccessRole::Viewer | AccessRole::Operator | AccessRole::Authorizer if spec.tenants.is_empty() => {
                "all tenants".to_owned()
            }
            AccessRole::Viewer | AccessRole::Operator | AccessRole::Authorizer => spec.tenants.join(", "),
            AccessRole::Registrar => spec.services.join(", "),
            AccessRole::Admin => "everything".to_owned(),
        };
        let row = vec![
            name.to_string(),
            spec.role.clone(),
            scope,
            spec.subjects.join(", "),
            binding.revision.to_string(),
        ];
        let mut item = json!(spec);
        item["revision"] = json!(binding.revision);
        listing.add(row, item);
        listing.documents.push(Document::from(&Resource::RoleBinding(name.clone(), binding.value.clone())));
    }
    listing
}
