use std::{fs, path::Path, process::Command};

/// Names and usage in the certificates.
const NAMES: &str = "subjectAltName=DNS:one.shop,DNS:db.shop,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n";

/// A certificate authority in a folder, with the certificates it issued.
pub(crate) struct Authority<'a>(pub(crate) &'a Path);

impl Authority<'_> {
    /// Creates the authority's key and its certificate, `ca.pem`.
    pub(crate) fn new(folder: &Path) -> Authority<'_> {
        let this = Authority(folder);
        fs::write(folder.join("extensions"), NAMES).unwrap();
        this.openssl(&format!("req -x509 {} -keyout ca.key -out ca.pem -days 2 -subj /CN=ca", key("ec")));
        this
    }

    /// Issues a certificate with an `ec` or `rsa` key, as `NAME.pem` and `NAME.key`.
    pub(crate) fn issue(&self, name: &str, kind: &str) {
        let key = key(kind);
        self.openssl(&format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out {name}.pem"
        ));
    }

    /// Path of a file in the folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Runs openssl in the folder.
    pub(crate) fn openssl(&self, arguments: &str) {
        let made = Command::new("openssl").args(arguments.split(' ')).current_dir(self.0).output();
        let made = made.expect("this test needs openssl");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
}

fn key(kind: &str) -> &'static str {
    match kind {
        "rsa" => "-newkey rsa:2048 -nodes",
        _ => "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes",
    }
}
