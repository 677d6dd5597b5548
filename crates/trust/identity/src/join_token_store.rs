//! Unused tokens, in one file each. Among concurrent requests, the one that removes the file has used the token.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use fairmesh_model::{Label, Region, ServiceName, Tenant};
use serde::{Deserialize, Serialize};

use crate::{IdentityError, JoinToken, MAX_TOKEN_TTL, join_token, pem_files};

/// Maximum number of unused tokens.
const MAX_TOKENS: usize = 10_000;
const EXTENSION: &str = "token";

/// The folder with the tokens of a control plane.
#[derive(Debug)]
pub struct Tokens {
    folder: PathBuf,
}

/// The identity for which a token was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Joining {
    /// The agent with this name.
    Agent(Label),
    /// A program that runs without an agent, with the identity of this service.
    Service(ServiceName),
}

impl fmt::Display for Joining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(name) => name.fmt(f),
            Self::Service(name) => name.fmt(f),
        }
    }
}

/// The permission that a token gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenGrant {
    /// The agent or program that may use the token. Files of the previous release call the field `agent`.
    #[serde(flatten)]
    pub joining: Joining,
    /// Tenants for whose services the agent may vouch; empty means all tenants.
    pub tenants: Vec<Tenant>,
    /// Region of the agent; `None` accepts whichever region the agent sends.
    #[serde(default)]
    pub region: Option<Region>,
    /// Time at which the token expires, in seconds since 1970.
    pub expires_at: u64,
}

#[derive(Serialize, Deserialize)]
struct TokenFile {
    secret: Vec<u8>,
    grant: TokenGrant,
}

/// Reason why a token is refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenRefused {
    /// The id or the proof is wrong, the token was used or has expired, or another control plane made it.
    #[error(
        "the token was used already, has expired, or was made by another control plane; make a new one with `fairmesh \
         identity token`"
    )]
    Unknown,
    /// The token is for another agent.
    #[error("the token is for another agent; give --name the name for which it was made")]
    OtherAgent,
    /// The token is for an agent, but a program tried to use it.
    #[error(
        "the token is for an agent; make one for this program with `fairmesh identity token --service TENANT/SERVICE`"
    )]
    ForAgent,
    /// The token is for a service, but another service or an agent tried to use it.
    #[error(
        "the token is for the service {0} and no other identity; use it as that, or make one for this identity with \
         `fairmesh identity token`"
    )]
    ForService(ServiceName),
    /// The token is for another region.
    #[error("the token is for the region {0}; give --region the region for which it was made")]
    OtherRegion(Region),
    /// A file could not be read or written.
    #[error(transparent)]
    Failed(#[from] IdentityError),
}

impl Tokens {
    /// Opens the tokens in `folder`, and creates the folder if missing.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub fn open(folder: &Path) -> Result<Self, IdentityError> {
        pem_files::secret_folder(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Creates a token for an agent or a program, which will trust `root`. Returns the token and its expiry, in
    /// seconds since 1970.
    ///
    /// # Errors
    /// When there are too many tokens, or the disk is full.
    pub fn create(
        &self,
        grant: TokenGrant,
        root: &[u8],
        now: Duration,
    ) -> Result<(JoinToken, u64), IdentityError> {
        let latest = now + MAX_TOKEN_TTL;
        let grant = TokenGrant { expires_at: grant.expires_at.min(latest.as_secs()), ..grant };
        if self.count(now)? >= MAX_TOKENS {
            return Err(IdentityError::Crypto(format!(
                "{MAX_TOKENS} tokens wait to be used; let some expire"
            )));
        }
        let made = JoinToken::generate(root)?;
        let expires_at = grant.expires_at;
        let content = serde_json::to_vec(&TokenFile { secret: made.secret.to_vec(), grant });
        pem_files::write_secret(&self.path(&made.id), &content.map_err(IdentityError::crypto)?)?;
        Ok((made, expires_at))
    }

    /// Verifies a token without using it up. Whether it has expired is checked when it is used.
    ///
    /// # Errors
    /// [`TokenRefused`].
    pub fn verify(
        &self,
        id: &[u8],
        (joining, region, request): (&Joining, &str, &[u8]),
        proof: &[u8],
    ) -> Result<TokenGrant, TokenRefused> {
        let TokenFile { secret, grant } = self.read(&self.path(id))?.ok_or(TokenRefused::Unknown)?;
        if !join_token::is_proved(&secret, (joining, region), request, proof) {
            return Err(TokenRefused::Unknown);
        }
        match (&grant.joining, joining) {
            (granted, joining) if granted == joining => {}
            (Joining::Service(granted), _) => return Err(TokenRefused::ForService(granted.clone())),
            (Joining::Agent(_), Joining::Agent(_)) => return Err(TokenRefused::OtherAgent),
            (Joining::Agent(_), Joining::Service(_)) => return Err(TokenRefused::ForAgent),
        }
        match grant.region.as_ref().filter(|granted| granted.as_str() != region) {
            Some(granted) => Err(TokenRefused::OtherRegion(granted.clone())),
            None => Ok(grant),
        }
    }

    /// Uses up a token.
    ///
    /// # Errors
    /// [`TokenRefused`]. The token stays usable unless it was used or has expired.
    pub fn redeem(
        &self,
        id: &[u8],
        joining: (&Joining, &str, &[u8]),
        proof: &[u8],
        now: Duration,
    ) -> Result<TokenGrant, TokenRefused> {
        let (path, grant) = (self.path(id), self.verify(id, joining, proof)?);
        // Of concurrent requests, the one that removes the file has used the token.
        let used = fs::remove_file(&path).and_then(|()| pem_files::sync_folder_of(&path));
        match used {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(TokenRefused::Unknown),
            Err(source) => Err(IdentityError::Io { path, source }.into()),
            Ok(()) if grant.expires_at <= now.as_secs() => Err(TokenRefused::Unknown),
            Ok(()) => Ok(grant),
        }
    }

    /// Counts the usable tokens, and removes expired ones.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn count(&self, now: Duration) -> Result<usize, IdentityError> {
        let failed = |source| IdentityError::Io { path: self.folder.clone(), source };
        let mut count = 0;
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            // Files with another extension are still being written.
            if path.extension().is_none_or(|kind| kind != EXTENSION) {
                continue;
            }
            match self.read(&path) {
                Ok(Some(token)) if token.grant.expires_at > now.as_secs() => count += 1,
                _ => drop(fs::remove_file(&path)),
            }
        }
        Ok(count)
    }

    fn path(&self, id: &[u8]) -> PathBuf {
        // Longer ids match no file, so it does not matter that they are cut.
        let name: String = id.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(name).with_extension(EXTENSION)
    }

    fn read(&self, path: &Path) -> Result<Option<TokenFile>, IdentityError> {
        let Some(content) = pem_files::read(path)? else { return Ok(None) };
        let invalid = |error: serde_json::Error| IdentityError::InvalidFile {
            path: path.to_owned(),
            problem: error.to_string(),
        };
        serde_json::from_slice(&content).map(Some).map_err(invalid)
    }
}
