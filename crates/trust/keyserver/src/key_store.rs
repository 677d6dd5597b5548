use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    rand,
};
use fairmesh_model::{Identity, Label, SpiffeId};
use zeroize::Zeroizing;

use crate::{AllowedCaller, KeyFile, KeyServerError, key_file, private_key::KeyType};

/// Keys of a key server, encrypted in memory. The encryption key exists only in this process. A key is decrypted only
/// while it signs; the plaintext is zeroised afterwards.
pub struct KeyStore {
    sealing: RandomizedNonceKey,
    keys: BTreeMap<Label, SealedKey>,
}

/// An encrypted key.
pub(crate) struct SealedKey {
    of: KeyType,
    nonce: [u8; NONCE_LEN],
    sealed: Vec<u8>,
    allowed: BTreeSet<SpiffeId>,
}

impl fmt::Debug for KeyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyStore").field("keys", &self.keys.keys()).finish_non_exhaustive()
    }
}

impl KeyStore {
    /// Reads keys, and the callers that may use each key.
    ///
    /// # Errors
    /// When a file has no key, or the names of keys and permitted callers do not match.
    pub fn load(files: &[KeyFile], allowed: &[AllowedCaller]) -> Result<Self, KeyServerError> {
        let mut secret = Zeroizing::new([0; 32]);
        rand::fill(&mut *secret).map_err(|_| KeyServerError::Encryption)?;
        let sealing =
            RandomizedNonceKey::new(&AES_256_GCM, &*secret).map_err(|_| KeyServerError::Encryption)?;
        let mut this = Self { sealing, keys: BTreeMap::new() };
        for KeyFile { name, path } in files {
            let der = key_file::read(path)?;
            let problem = "holds a key of another type";
            let of =
                KeyType::of(&der).ok_or_else(|| KeyServerError::NoKey { path: path.clone(), problem })?;
            let sealed = this.seal(name, of, der)?;
            if this.keys.insert(name.clone(), sealed).is_some() {
                return Err(KeyServerError::SameName(name.clone()));
            }
        }
        for AllowedCaller { key, caller } in allowed {
            let known = this.keys.get_mut(key).ok_or_else(|| KeyServerError::NoSuchKey(key.clone()))?;
            known.allowed.insert(caller.clone());
        }
        match this.keys.iter().find(|(_, key)| key.allowed.is_empty()) {
            Some((name, _)) => Err(KeyServerError::NoCaller(name.clone())),
            None => Ok(this),
        }
    }

    /// Returns the names of the keys.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Label> {
        self.keys.keys()
    }

    /// Returns the key and its name if this caller is permitted to use the key.
    pub(crate) fn permitted(&self, caller: &Identity, name: &str) -> Option<(&Label, &SealedKey)> {
        let Identity::Spiffe(caller) = caller else { return None };
        let found = self.keys.get_key_value(&Label::new(name).ok()?)?;
        found.1.allowed.contains(caller).then_some(found)
    }

    /// Encrypts a key in place.
    fn seal(
        &self,
        name: &Label,
        of: KeyType,
        mut der: Zeroizing<Vec<u8>>,
    ) -> Result<SealedKey, KeyServerError> {
        let aad = Aad::from(name.as_str());
        let sealed = self.sealing.seal_in_place_separate_tag(aad, &mut der[..]);
        let (nonce, tag) = sealed.map_err(|_| KeyServerError::Encryption)?;
        let sealed = [&der[..], tag.as_ref()].concat();
        Ok(SealedKey { of, nonce: *nonce.as_ref(), sealed, allowed: BTreeSet::new() })
    }

    /// Signs with a key, which is decrypted only during signing; `None` if signing fails.
    pub(crate) fn sign(&self, name: &Label, scheme: u32, message: &[u8]) -> Option<Vec<u8>> {
        let key = self.keys.get(name)?;
        let mut opened = Zeroizing::new(key.sealed.clone());
        let nonce = Nonce::assume_unique_for_key(key.nonce);
        let pkcs8 = self.sealing.open_in_place(nonce, Aad::from(name.as_str()), &mut opened).ok()?;
        key.of.sign(pkcs8, scheme, message)
    }
}

impl SealedKey {
    pub(crate) fn key_type(&self) -> KeyType {
        self.of
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use aws_lc_rs::{
        encoding::{AsBigEndian, EcPrivateKeyBin},
        signature::{
            ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _,
            UnparsedPublicKey,
        },
    };
    use base64::{Engine as _, prelude::BASE64_STANDARD};

    use super::*;

    const CALLER: &str = "spiffe://prod/shop/edge";

    fn load(files: &[&str], allowed: &[&str]) -> Result<KeyStore, String> {
        let files: Vec<KeyFile> = files.iter().map(|file| file.parse().unwrap()).collect();
        let allowed: Vec<AllowedCaller> = allowed.iter().map(|allowed| allowed.parse().unwrap()).collect();
        KeyStore::load(&files, &allowed).map_err(|error| error.to_string())
    }

    #[test]
    fn encrypted_key_signs_only_for_permitted_callers() {
        let folder = tempfile::tempdir().unwrap();
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let der = pair.to_pkcs8v1().unwrap();
        let path = folder.path().join("key");
        let encoded = BASE64_STANDARD.encode(der.as_ref());
        fs::write(&path, format!("-----BEGIN PRIVATE KEY-----\n{encoded}\n-----END PRIVATE KEY-----\n"))
            .unwrap();
        let file = format!("edge={}", path.display());
        let store = load(&[&file], &[&format!("edge={CALLER}")]).unwrap();
        let spiffe = |id: &str| Identity::Spiffe(id.parse().unwrap());
        let (name, key) = store.permitted(&spiffe(CALLER), "edge").unwrap();
        assert!(key.key_type().has_scheme(0x0403) && !key.key_type().has_scheme(0x0804));
        let signature = store.sign(name, 0x0403, b"message").unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, pair.public_key().as_ref());
        public.verify(b"message", &signature).unwrap();
        let scalar = AsBigEndian::<EcPrivateKeyBin<'_>>::as_be_bytes(&pair.private_key()).unwrap();
        let scalar = scalar.as_ref();
        assert!(!key.sealed.windows(scalar.len()).any(|window| window == scalar));
        for (caller, name) in [
            (spiffe("spiffe://prod/shop/other"), "edge"),
            (spiffe("spiffe://test/shop/edge"), "edge"),
            (spiffe(CALLER), "other"),
            (spiffe(CALLER), ""),
            (Identity::Anonymous, "edge"),
            (Identity::Local { uid: 0 }, "edge"),
        ] {
            assert!(store.permitted(&caller, name).is_none(), "{caller} {name}");
        }
        for (allowed, problem) in [
            (vec![], "no caller may use the key edge"),
            (vec![format!("other={CALLER}")], "--allow names the key other"),
        ] {
            let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
            let error = load(&[&file], &allowed).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        assert!(load(&[&file, &file], &[]).unwrap_err().contains("two keys are named edge"));
        assert!(load(&["edge=/nonexistent"], &[]).unwrap_err().contains("check that it exists"));
    }
}
