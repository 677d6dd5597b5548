//! Recognises Kubernetes documents, which the mesh does not accept. The error names the replacement.

use serde_saphyr::Spanned;

use super::Diagnostic;

/// Kinds of Kubernetes and of its service meshes, with their replacements.
const PLACES: [(&[&str], &str); 6] = [
    (
        &["Service", "ServiceEntry"],
        "write 'kind: Service' with 'name: tenant/service' and without apiVersion, metadata and spec",
    ),
    (
        &[
            "HTTPRoute",
            "GRPCRoute",
            "VirtualService",
            "ServiceProfile",
            "Ingress",
            "ServiceRouter",
            "ServiceSplitter",
        ],
        "its rules become 'routes' of a 'kind: Policy': match, split, timeout, fault (docs/routes.md)",
    ),
    (
        &[
            "DestinationRule",
            "BackendTrafficPolicy",
            "ServiceDefaults",
            "ServiceResolver",
            "PeerAuthentication",
        ],
        "it becomes balancing, retries, timeouts and healthCheck of a 'kind: Policy' (docs/yaml.md)",
    ),
    (
        &["AuthorizationPolicy", "ServiceIntentions", "ServerAuthorization", "NetworkPolicy"],
        "it becomes a 'kind: Authorization' with 'service' (docs/security-access.md)",
    ),
    (
        &["Deployment", "StatefulSet", "DaemonSet", "Pod", "ReplicaSet", "Job"],
        "programs are not deployed by the mesh: start them with 'fairmesh register SERVICE -- COMMAND', which registers them",
    ),
    (
        &["Endpoints", "EndpointSlice"],
        "servers register themselves, by the library or 'fairmesh register'; or give a file with --source",
    ),
];

/// Returns the error for a document with `apiVersion`.
pub(super) fn diagnostic(version: &Spanned<String>, kind: Option<&Spanned<String>>) -> Diagnostic {
    let kind = kind.map_or("", |kind| kind.value.as_str());
    let hint = PLACES.iter().find(|(kinds, _)| kinds.contains(&kind)).map_or(
        "documents of the mesh have 'kind' and their fields, without apiVersion, metadata and spec (docs/yaml.md)",
        |(_, hint)| hint,
    );
    let message =
        format!("this is a document of Kubernetes ({} {kind}), which the mesh does not read", version.value);
    Diagnostic::at(version.referenced, message.replace(" )", ")"), hint)
}
