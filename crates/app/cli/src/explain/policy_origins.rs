//! Origins of policy fields that have defaults.

use fairmesh_model::{FieldOrigin, Policy, PolicyField, ServiceName, Tenant, spec::PolicySpec};
use serde_json::{Value, json};

/// A field of a merged policy.
#[derive(Debug)]
pub(super) struct OriginatedField {
    field: PolicyField,
    origin: FieldOrigin,
    /// Value as in documents; null for a built-in value.
    value: Value,
}

/// The fields of a merged policy that have defaults.
pub(super) fn fields(
    name: &ServiceName,
    merged: &Policy,
    origins: &[(PolicyField, FieldOrigin)],
) -> Vec<OriginatedField> {
    let document = json!(PolicySpec::of(name, merged));
    let value = |field: PolicyField| {
        let value = field.path().split('.').try_fold(&document, |value, name| value.get(name));
        value.cloned().unwrap_or_default()
    };
    origins
        .iter()
        .map(|(field, origin)| OriginatedField { field: *field, origin: *origin, value: value(*field) })
        .collect()
}

/// Adds the fields to an explanation: all as JSON, and those from defaults as text.
pub(super) fn add(fields: &[OriginatedField], tenant: &Tenant, whole: &mut Value, text: &mut String) {
    let item = |OriginatedField { field, origin, value }: &OriginatedField| json!({ "field": field.path(), "origin": origin.as_str(), "value": value });
    whole["policyFields"] = fields.iter().map(item).collect();
    for OriginatedField { field, origin, value } in fields {
        let whose = match origin {
            FieldOrigin::Tenant => format!("the tenant {tenant}"),
            FieldOrigin::Mesh => "the mesh".to_owned(),
            FieldOrigin::Service | FieldOrigin::BuiltIn => continue,
        };
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        *text += &format!("{:<8} {} is {value}, by the defaults of {whose}\n", "default", field.path());
    }
}
