//! The authority of the benchmark's trust domain, shared with the control plane. Envoy and clients without an agent
//! thus have certificates that every side accepts.

use std::{fs, path::Path};

use fairmesh_identity::{Authority, Clock as _, Credentials, PrivateKey, SystemClock};
use fairmesh_model::{SpiffeId, TrustDomain};

/// The trust domain.
pub(crate) const DOMAIN: &str = "bench";
/// Name of the file with key and certificates in an identity folder.
pub(crate) const IDENTITY: &str = "identity.key";
/// Name of the file with roots next to it.
pub(crate) const BUNDLE: &str = "bundle.pem";

pub(crate) struct BenchAuthority(Authority);

impl BenchAuthority {
    /// Creates the authority of a control plane that will have its data in `dir`.
    pub(crate) fn open(dir: &Path) -> Result<Self, String> {
        let folder = dir.join("control");
        fs::create_dir_all(&folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
        let domain = TrustDomain::new(DOMAIN).map_err(|e| e.to_string())?;
        let authority = Authority::open(&folder.join("ca"), &domain, SystemClock.now());
        authority.map(Self).map_err(|e| e.to_string())
    }

    /// Issues a certificate with this SPIFFE path, and writes it with its key and the roots to a folder.
    pub(crate) fn issue(&self, path: &str, folder: &Path) -> Result<(), String> {
        let id: SpiffeId = format!("spiffe://{DOMAIN}/{path}").parse().map_err(|e| format!("{e}"))?;
        let now = SystemClock.now();
        let issued = PrivateKey::generate().and_then(|key| {
            let issued = self.0.issue(&key.signing_request()?, &id, now)?;
            Credentials::new(key, issued.chain, self.0.bundle(), now)?.save(folder)
        });
        issued.map_err(|e| format!("no certificate for {id}: {e}"))
    }
}

/// Writes key and certificates of a folder to separate files, in the form listeners take: `edge.pem` and `edge.key`.
pub(crate) fn split(folder: &Path) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    let both = fs::read_to_string(folder.join(IDENTITY)).map_err(failed)?;
    let (mut key, mut certificates) = (String::new(), String::new());
    for block in both.split_inclusive("-----\n").collect::<Vec<_>>().chunks(2) {
        let block = block.concat();
        if block.contains("PRIVATE KEY") { key.push_str(&block) } else { certificates.push_str(&block) }
    }
    fs::write(folder.join("edge.key"), key).map_err(failed)?;
    fs::write(folder.join("edge.pem"), certificates).map_err(failed)
}
