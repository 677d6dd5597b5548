//! Refuses services whose endpoints would prove an id of this mesh's own trust domain.

use bytes::Bytes;
use fairmesh_model::{Invalid, Record, RecordKey};
use fairmesh_rib::access::AccessControl;
use fairmesh_wire::record_encoding;

/// Refuses services with an `identity` of the own trust domain: callers accept no such endpoint, since within the domain
/// each service proves its own id. Without the refusal, a record that can never work would be stored.
///
/// # Errors
/// Names the field of the first such service.
pub(crate) fn check<'a>(
    access: &AccessControl,
    written: impl IntoIterator<Item = (&'a RecordKey, Option<&'a Bytes>)>,
) -> Result<(), Invalid> {
    for (key, value) in written {
        let (RecordKey::Service(name), Some(value)) = (key, value) else { continue };
        // A record that cannot be decoded is of a newer release; routers skip it.
        let Ok(Record::Service(service)) = record_encoding::decode(key, value) else { continue };
        let Some(id) = service.identity else { continue };
        if access.trust_domain().is_some_and(|own| own == id.domain) {
            let problem = format!("'{id}' of {name} is an id of this mesh's own trust domain");
            let hint = "leave it out: within the trust domain, endpoints prove the id of their service; 'identity' is for \
                        services of federated trust domains";
            return Err(Invalid::new("identity", problem, hint));
        }
    }
    Ok(())
}
