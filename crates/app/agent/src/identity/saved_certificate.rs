//! Checks a saved certificate when an agent starts. An agent that was revoked, or that missed a replacement of the
//! mesh's root, gets no message about this because other processes refuse its connections. The agent joins again if it can.
//! It does so too if it joined in another region and has a token, because its reports for this one are refused.

use std::time::Duration;

use fairmesh_identity::{Credentials, IdentityError, PrivateKey};
use fairmesh_wire::{
    handshake::{self, Connection},
    transport::{Address, TlsIdentity as _},
};
use tonic::{Code, Status};

use super::{Shared, below};

/// Minimum and maximum pause while no control plane responds.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Result of trying a saved certificate.
enum Tried {
    Accepted,
    /// The attempt failed, possibly for another reason.
    Unknown(String),
    /// A control plane refuses the certificate, or cannot be verified with it, or does not let it report for this
    /// region.
    Refused(String),
}

impl Shared {
    /// Whether this agent must try its saved certificate: it has one from an earlier start, and can get another one.
    pub(super) fn has_to_try_kept(&self) -> bool {
        self.workload.is_ready() && self.workload_api.is_none() && (self.token.is_some() || self.is_beside())
    }

    /// Tries the saved certificate, and joins anew if it is refused.
    pub(super) async fn try_kept(&self) {
        let mut pause = PAUSE.0;
        // Renewal replaces a certificate that is known to be useless.
        while let Some(own) = self.valid_credentials() {
            let problem = match self.try_credentials(&own).await {
                Tried::Accepted => return self.say_accepted(),
                Tried::Refused(problem) => match self.join_anew().await {
                    Ok(()) => {
                        return tracing::warn!(
                            problem,
                            "the certificate of this agent could not be used; it has joined anew"
                        );
                    }
                    Err(status) if is_final(status.code()) => {
                        let reason = status.message();
                        return tracing::error!(
                            problem,
                            reason,
                            "the certificate of this agent cannot be used, and it may not join anew"
                        );
                    }
                    Err(status) => format!("{problem}; {}", status.message()),
                },
                Tried::Unknown(problem) => problem,
            };
            tracing::debug!(problem, "it is not known yet whether the certificate of this agent is accepted");
            tokio::time::sleep(pause + below(pause)).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn say_accepted(&self) {
        if self.token.is_some() {
            tracing::info!(
                "the join token is not used: this agent has joined, and its certificate is accepted"
            );
        }
    }

    /// Makes a call that needs the certificate on both sides, to the first control plane or replica that responds.
    async fn try_credentials(&self, own: &Credentials) -> Tried {
        let (transport, addresses) = &self.control_planes;
        let mut failed = String::new();
        for address in addresses {
            match handshake::connect(transport, address, &format!("agent {}", self.name)).await {
                Ok(connection) => return self.try_over(&connection, own).await,
                Err(error) => failed = error.with_causes(),
            }
        }
        match self.token {
            // A refused certificate may look like a closed connection. If no control plane is reachable, joining fails as well
            // and the token stays usable.
            Some(_) => Tried::Refused(failed),
            None => Tried::Unknown(failed),
        }
    }

    async fn try_over(&self, connection: &Connection, own: &Credentials) -> Tried {
        match self.ask_for_roots(connection, own).await {
            Ok(_) => self.try_region(connection).await,
            Err(status) if is_final(status.code()) => Tried::Refused(status.message().to_owned()),
            Err(status) => Tried::Unknown(status.message().to_owned()),
        }
    }

    /// Whether an accepted certificate is of use for this agent's region. Only a token can change that.
    async fn try_region(&self, connection: &Connection) -> Tried {
        if self.token.is_none() {
            return Tried::Accepted;
        }
        match self.other_region(connection).await {
            Ok(Some(recorded)) => {
                Tried::Refused(format!("it was issued for the region {recorded}, not {}", self.region))
            }
            // A control plane of the previous release does not let every agent read its record.
            Ok(None) | Err(_) => Tried::Accepted,
        }
    }

    async fn connect_beside(&self) -> Result<Connection, String> {
        let (transport, addresses) = &self.control_planes;
        let beside = addresses.iter().find(|address| matches!(address, Address::Unix(_)));
        let address = beside.ok_or("this agent has neither a token nor a control plane at a Unix socket")?;
        let connection = handshake::connect(transport, address, &format!("agent {}", self.name)).await;
        connection.map_err(|error| error.with_causes())
    }

    /// Gets a certificate with the token, or over the Unix socket of a control plane.
    async fn join_anew(&self) -> Result<(), Status> {
        let failed = |error: IdentityError| Status::internal(error.to_string());
        let connection = match self.token {
            Some(_) => self.connect_to_join().await,
            None => self.connect_beside().await,
        };
        let connection = connection.map_err(Status::unavailable)?;
        let key = PrivateKey::generate().map_err(failed)?;
        let certified = self.join(&connection, key.signing_request().map_err(failed)?).await?;
        let made = Credentials::new(key, certified.chain, certified.bundle, self.workload.now());
        let made = made.map_err(failed)?;
        if let Err(error) = self.save(&made) {
            tracing::error!(%error, "the new certificate cannot be kept on disk");
        }
        self.workload.install(made).map_err(failed)
    }
}

/// Whether a retry would be refused again.
fn is_final(code: Code) -> bool {
    matches!(code, Code::Unauthenticated | Code::PermissionDenied)
}
