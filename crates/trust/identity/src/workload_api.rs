//! Gets the identity of a process from a SPIFFE Workload API, such as SPIRE's, instead of Fairmesh's agent.

use std::{convert::Infallible, sync::Arc, time::Duration};

use fairmesh_model::SpiffePath;
use fairmesh_wire::{
    spiffe::{X509svidRequest, X509svidResponse, spiffe_workload_api_client::SpiffeWorkloadApiClient},
    transport::{Address, Transport, connect_channel},
};
use tokio::time::{Instant, sleep};
use tonic::{Code, Request, Status, metadata::MetadataValue};

use crate::{CertificateInfo, Credentials, Workload, error::rfc3339, renewal};

/// Metadata key that the SPIFFE specification requires on each call.
const HEADER: &str = "workload.spiffe.io";
/// Pauses between failed attempts: the first and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A Workload API, and the identity to request from it.
#[derive(Clone, Debug)]
pub struct WorkloadApi {
    /// Unix socket of the API.
    pub socket: Address,
    /// Identity to choose among those offered; `None` uses the first.
    pub path: Option<SpiffePath>,
}

impl WorkloadApi {
    /// Installs the certificates and roots that the API sends. Calls `note` with each problem, and with `None` once
    /// the problem is solved. Never returns. Received certificates stay in use while the API is unreachable.
    pub async fn follow(self, workload: Arc<Workload>, note: impl Fn(Option<String>)) {
        let (mut pause, began) = (BACKOFF.0, Instant::now());
        loop {
            let received = |installed: Result<(), String>| {
                if let Err(problem) = &installed {
                    renewal::report(&workload, problem, began.elapsed());
                }
                note(installed.err());
            };
            let mut has_responded = false;
            let streamed = self.stream(&workload, |installed| {
                has_responded = true;
                received(installed);
            });
            let Err(problem) = streamed.await;
            renewal::report(&workload, &problem, began.elapsed());
            // The last problem still describes the state.
            if has_responded {
                pause = BACKOFF.0;
            } else {
                note(Some(problem));
            }
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    /// Installs each response until the stream ends.
    async fn stream(
        &self,
        workload: &Workload,
        mut installed: impl FnMut(Result<(), String>),
    ) -> Result<Infallible, String> {
        let api = format!("the SPIFFE Workload API at {}", self.socket);
        let unreachable = |error| format!("{api} cannot be reached: {error}; see FAIRMESH_IDENTITY");
        let channel = connect_channel(&Transport::default(), &self.socket).await.map_err(unreachable)?;
        let mut request = Request::new(X509svidRequest {});
        request.metadata_mut().insert(HEADER, MetadataValue::from_static("true"));
        let refused = |status: Status| match status.code() {
            Code::PermissionDenied => {
                format!("{api} gives this program no identity ({}); register it there", status.message())
            }
            _ => format!("{api} fails: {}", status.message()),
        };
        let mut client = SpiffeWorkloadApiClient::new(channel);
        let mut responses = client.fetch_x509svid(request).await.map_err(refused)?.into_inner();
        while let Some(response) = responses.message().await.map_err(refused)? {
            installed(self.install(workload, &response).map_err(|problem| format!("{api} {problem}")));
        }
        Err(format!("{api} ended the stream"))
    }

    fn install(&self, workload: &Workload, response: &X509svidResponse) -> Result<(), String> {
        let given = || response.svids.iter().map(|svid| svid.spiffe_id.as_str());
        let is_wanted = |id: &str| match (&self.path, id.parse::<fairmesh_model::SpiffeId>()) {
            (Some(path), Ok(id)) => id.path == *path,
            (None, _) => true,
            (Some(_), Err(_)) => false,
        };
        let Some(svid) = response.svids.iter().find(|svid| is_wanted(&svid.spiffe_id)) else {
            let wanted = self.path.as_ref().map(ToString::to_string).unwrap_or_default();
            let given: Vec<_> = given().collect();
            return Err(format!(
                "gives this program {}, and not spiffe://TRUST-DOMAIN/{wanted}; register it there with that id",
                if given.is_empty() { "no identity".to_owned() } else { given.join(", ") },
            ));
        };
        let unusable = |error: crate::IdentityError| {
            format!(
                "gives {}, which cannot be used: {error}; ids have the form spiffe://TRUST-DOMAIN/TENANT/SERVICE",
                svid.spiffe_id
            )
        };
        let credentials = Credentials::of_svid(svid, workload.now()).map_err(unusable)?;
        let (id, (_, expires)) = (credentials.id().clone(), credentials.validity());
        let serial = CertificateInfo::of(&credentials.chain[0]).map(|info| info.serial).unwrap_or_default();
        workload.install(credentials).map_err(unusable)?;
        tracing::info!(%id, serial, expires = rfc3339(expires), "a certificate was received");
        Ok(())
    }
}
