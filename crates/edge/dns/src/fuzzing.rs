//! Entry points of fuzz targets.

use std::net::Ipv4Addr;

use fairmesh_model::ServiceName;
use futures_util::FutureExt as _;

use crate::{
    answers::{Answers, Carrier},
    service_directory::Directory,
};

/// The response over UDP to a query for the zone `mesh` with the service shop/cart.
pub fn respond(query: &[u8]) -> Option<Vec<u8>> {
    let cart = ServiceName::new("shop/cart").expect("it is a name");
    let zone = "mesh".parse().expect("it is a zone");
    let directory = Directory::of_services([(cart, None)]);
    let answers = Answers::new(zone, vec![Ipv4Addr::LOCALHOST.into()], directory);
    // Completes at once, since the directory has no upstream.
    answers.respond(query, Carrier::Udp).now_or_never()?
}
