//! What commands ask the control plane, asked within its process: the page shows what commands show.

use axum::http::Extensions;
use fairmesh_model::Prefix;
use fairmesh_wire::{
    rpc::MAX_MESSAGE,
    v1::{
        self, admin_client::AdminClient, authority_client::AuthorityClient, registry_client::RegistryClient,
        rib_client::RibClient, traffic_planner_client::TrafficPlannerClient,
    },
};
use serde_json::json;
use tokio::runtime::Handle;
use tonic::{Request, Status, service::Routes};

use crate::shown::Shown;

/// The gRPC services of the control plane. They are called without a check: who may see their responses is decided in front of the page.
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

    /// The watchers of a prefix, as the caller of `asker` may see them.
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

/// Waits for what a command shows, on a thread that may block; why there is nothing if it fails.
pub(crate) fn wait(asking: impl Future<Output = Result<Shown, Status>>) -> Shown {
    Handle::current().block_on(asking).unwrap_or_else(|status| problem(status.message()))
}

/// Stands for what cannot be shown.
pub(crate) fn problem(why: &str) -> Shown {
    Shown::head(&json!({ "problem": why }))
}

/// An age in milliseconds, in steps that a reader does not miss: a row without other news is not sent again each time.
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
    fn coarse_ages_have_steps_that_grow() {
        assert_eq!([0, 4_999, 59_999, 100_000, 7_300_000].map(coarse), [0, 0, 55_000, 60_000, 7_200_000]);
    }
}
