//! The components that all others are built on.

use std::sync::Arc;

use ::moves::HostName;
use rpc::Endpoint;
use rpc::pki::Identity;
use store::NodeStore;

use crate::agent::Agent;
use crate::dialer::Dialer;
use crate::directory::Directory;
use crate::error::NodeError;
use crate::instances::StateFiles;
use crate::names::Names;
use crate::options::{HOSTS, NodeOptions};
use crate::uplink::Uplink;

pub struct Base {
    pub name: HostName,
    pub endpoint: Endpoint,
    pub uplink: Arc<Uplink>,
    pub directory: Arc<Directory>,
    pub dialer: Dialer,
    pub agent: Arc<Agent>,
    pub files: Arc<StateFiles>,
    pub names: Names,
}

impl Base {
    /// Opens the certificate and the records of a node.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn open(options: &NodeOptions) -> Result<Self, NodeError> {
        let name = HostName::new(&options.name)?;
        let endpoint = Endpoint::new(Identity::load(&options.pki, &options.name)?)?;
        let in_state = |source| NodeError::io(options.state.display().to_string(), source);
        let files = Arc::new(StateFiles::open(&options.state).map_err(in_state)?);
        let names = Names::open(&options.state.join(HOSTS)).map_err(in_state)?;
        let store = NodeStore::open(&options.state.join("node.redb"))?;
        // Even before the coordinator can be reached.
        endpoint.gate().set(store.removed()?.unwrap_or_default());
        let (uplink, directory) = (Arc::<Uplink>::default(), Arc::<Directory>::default());
        let agent = Arc::new(Agent::new(name.clone(), store, uplink.clone(), directory.clone())?);
        let dialer = Dialer::new(endpoint.clone(), directory.clone());
        Ok(Self { name, endpoint, uplink, directory, dialer, agent, files, names })
    }
}
