use fairmesh_model::{Endpoint, EndpointState, FULL_WEIGHT, InstanceId, Location, Region};

/// A serving endpoint of full weight in a region, without lease or labels, at an address where nothing listens.
///
/// A test sets the fields that matter to it: `Endpoint { weight: 500, ..endpoint("a", "eu") }`.
///
/// # Panics
/// When a name is not valid.
pub fn endpoint(instance: &str, region: &str) -> Endpoint {
    Endpoint {
        mtls: false,
        instance: InstanceId::new(instance).unwrap(),
        address: ([127, 0, 0, 1], 1).into(),
        location: Location::in_region(Region::new(region).unwrap()),
        state: EndpointState::Serving,
        weight: FULL_WEIGHT,
        lease: None,
        labels: Default::default(),
    }
}
