use fairmesh_model::{Hosts, Location, Region, Regions, RoundTrips};

/// The topology and the caller's place in it, which all services are compiled with.
#[derive(Debug)]
pub(super) struct Topology {
    pub(super) regions: Regions,
    pub(super) round_trips: RoundTrips,
    pub(super) hosts: Hosts,
    /// Of the caller, once it is known.
    pub(super) location: Option<Location>,
    pub(super) client_id: String,
    /// The hash of `client_id`.
    pub(super) client: u64,
}

impl Topology {
    pub(super) fn location_or_unknown(&self) -> Location {
        self.location.clone().unwrap_or_else(|| {
            // "nowhere" is a well-formed region name; as no round trip to it is known, all regions are equally far.
            Location::in_region(Region::new("nowhere").unwrap_or_else(|_| unreachable!("a valid name")))
        })
    }
}
