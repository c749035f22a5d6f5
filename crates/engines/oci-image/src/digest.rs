//! Computes digests of parts of images.

use instance::Digest;
use ring::digest::SHA256;

/// The digest of `bytes`.
#[must_use]
pub fn of(bytes: &[u8]) -> Digest {
    finished(&ring::digest::digest(&SHA256, bytes))
}

/// The digest that `ring` has computed.
pub(crate) fn finished(digest: &ring::digest::Digest) -> Digest {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    Digest::from_bytes(&bytes)
}

/// Identifies the files of layers with these digests: the `ChainID` of the image specification. `None` without
/// layers.
#[must_use]
pub fn of_chain(layers: &[Digest]) -> Option<Digest> {
    let (first, others) = layers.split_first()?;
    let above = |below: Digest, layer: &Digest| of(format!("{below} {layer}").as_bytes());
    Some(others.iter().fold(first.clone(), above))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_nothing_is_the_well_known_one() {
        let known = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(of(b"").to_string(), known);
    }

    #[test]
    fn a_chain_id_depends_on_all_layers_in_order() {
        let [a, b] = [of(b"a"), of(b"b")];
        let chain = |layers: &[Digest]| of_chain(layers).unwrap();
        assert_eq!(chain(std::slice::from_ref(&a)), a);
        assert_eq!(chain(&[a.clone(), b.clone()]), of(format!("{a} {b}").as_bytes()));
        assert_ne!(chain(&[a.clone(), b.clone()]), chain(&[b, a]));
        assert_eq!(of_chain(&[]), None);
    }
}
