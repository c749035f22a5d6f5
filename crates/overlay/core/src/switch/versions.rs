//! The topologies that a node knows.
//!
//! ```text
//! install(v2) on all nodes ──▶ use_version(v2) on all nodes
//! ```
//!
//! A node stamps frames with a version only when all nodes have it, and each node forwards a frame with the version
//! of its stamp. So a frame sees one topology on its whole route, whenever the nodes change over.

use crate::topology::{NodeId, Routes, Version};

/// How many versions a node keeps, beside the one that it uses.
pub const KEPT_VERSIONS: usize = 4;

/// Why a topology is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVersion {
    /// The routes are another node's.
    #[error("the routes belong to node {0}")]
    OtherNode(NodeId),
    /// It is older than the known ones.
    #[error("version {0} of the topology is older than the known ones")]
    Old(Version),
    /// It has to be installed first.
    #[error("version {0} of the topology is not installed")]
    Unknown(Version),
}

/// Routes by version.
#[derive(Default)]
pub(super) struct Versions {
    /// In ascending order of versions.
    known: Vec<Routes>,
    current: Option<Version>,
}

impl Versions {
    /// Adds `routes`, and removes the oldest that are not in use. A known version stays as it is.
    pub fn install(&mut self, routes: Routes) -> Result<(), InvalidVersion> {
        let version = routes.version();
        let Err(at) = self.known.binary_search_by_key(&version, Routes::version) else { return Ok(()) };
        if Some(version) < self.current || (at == 0 && self.known.len() > KEPT_VERSIONS) {
            return Err(InvalidVersion::Old(version));
        }
        self.known.insert(at, routes);
        while self.known.len() > KEPT_VERSIONS + 1 {
            let oldest = self.known.iter().position(|routes| Some(routes.version()) != self.current);
            self.known.remove(oldest.unwrap_or(0));
        }
        Ok(())
    }

    /// Stamps own frames with `version` from now on. Never goes back.
    pub fn use_version(&mut self, version: Version) -> Result<(), InvalidVersion> {
        if Some(version) < self.current {
            return Err(InvalidVersion::Old(version));
        }
        self.get(version).ok_or(InvalidVersion::Unknown(version))?;
        self.current = Some(version);
        Ok(())
    }

    /// The routes of `version`, if they are known (still).
    #[inline]
    pub fn get(&self, version: Version) -> Option<&Routes> {
        // The version in use is mostly the newest.
        self.known.iter().rev().find(|routes| routes.version() == version)
    }

    /// The routes with which own frames are stamped.
    #[inline]
    pub fn current(&self) -> Option<&Routes> {
        self.get(self.current?)
    }

    /// Whether any known topology has `node`.
    pub fn knows(&self, node: NodeId) -> bool {
        self.known.iter().any(|routes| routes.contains(node))
    }

    /// The known versions, in ascending order.
    pub fn list(&self) -> Vec<Version> {
        self.known.iter().map(Routes::version).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    fn routes(version: u32) -> Routes {
        Topology::mesh(Version(version), &[NodeId(1)]).unwrap().routes(NodeId(1)).unwrap()
    }

    #[test]
    fn the_newest_versions_are_kept_and_the_one_in_use() {
        let mut versions = Versions::default();
        assert!(versions.current().is_none());
        assert_eq!(versions.use_version(Version(1)), Err(InvalidVersion::Unknown(Version(1))));
        versions.install(routes(1)).unwrap();
        versions.use_version(Version(1)).unwrap();
        for version in [3, 2, 4, 6, 5, 7, 4] {
            let _ = versions.install(routes(version));
        }
        assert_eq!(versions.list(), [1, 4, 5, 6, 7].map(Version));
        assert_eq!(versions.current().map(Routes::version), Some(Version(1)));
        versions.use_version(Version(6)).unwrap();
        assert_eq!(versions.use_version(Version(5)), Err(InvalidVersion::Old(Version(5))));
        versions.install(routes(8)).unwrap();
        assert_eq!(versions.list(), [4, 5, 6, 7, 8].map(Version));
        assert_eq!(versions.install(routes(3)), Err(InvalidVersion::Old(Version(3))));
        assert!(versions.knows(NodeId(1)) && !versions.knows(NodeId(2)));
    }
}
