//! Calls the same gRPC methods as commands do, within the control plane's process, so that the page shows what
//! commands show.

use axum::http::Extensions;
use fairmesh_model::Prefix;
use fairmesh_wire::{
    grpc_stubs::MAX_MESSAGE,
    v1::{
        self, admin_client::AdminClient, authority_client::AuthorityClient, registry_client::RegistryClient,
        rib_client::RibClient, traffic_planner_client::TrafficPlannerClient,
    },
};
use serde_json::json;
use tokio::runtime::Handle;
use tonic::{Request, Status, service::Routes};

use crate::event_delta::Shown;

/// The gRPC services of the control plane. They are called without an access check, because access is checked in
/// front of the page.
#[derive(Clone, Debug)]
pub(crate) struct Commands(pub(crate) Routes);

impl Commands {
    pub(crate) fn admin(&self) -> AdminClient<Routes> {
        AdminClient::new(self.0.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn authority(&self) -> AuthorityClient<Routes> {
        AuthorityClient::new(self.0.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn registry(&self) -> RegistryClient<Routes> {
        RegistryClient::new(self.0.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    fn rib(&self) -> RibClient<Routes> {
        RibClient::new(self.0.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    pub(crate) fn planner(&self) -> TrafficPlannerClient<Routes> {
        TrafficPlannerClient::new(self.0.clone()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// Returns the watchers of a prefix that the caller of the request `asker` may see.
    pub(crate) async fn watchers(
        &self,
        prefix: &Prefix,
        asker: &Extensions,
    ) -> Result<v1::WatchersResponse, Status> {
        let mut request = Request::new(v1::WatchersRequest { prefix: prefix.to_string() });
        *request.extensions_mut() = asker.clone();
        Ok(self.rib().watchers(request).await?.into_inner())
    }
}

/// Waits for the response of a command, on a thread that may block. If the command fails, shows the error instead.
pub(crate) fn wait(asking: impl Future<Output = Result<Shown, Status>>) -> Shown {
    Handle::current().block_on(asking).unwrap_or_else(|status| problem(status.message()))
}

/// Content shown instead of a part that failed.
pub(crate) fn problem(why: &str) -> Shown {
    Shown::head(&json!({ "problem": why }))
}

/// Rounds an age in milliseconds down to coarse steps, so that a row is not sent again only because it aged.
pub(crate) fn coarse(age_ms: u64) -> u64 {
    let step = match age_ms {
        0..60_000 => 5_000,
        60_000..7_200_000 => 60_000,
        _ => 3_600_000,
    };
    age_ms - age_ms % step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_age_steps_grow_with_age() {
        assert_eq!([0, 4_999, 59_999, 100_000, 7_300_000].map(coarse), [0, 0, 55_000, 60_000, 7_200_000]);
    }
}
