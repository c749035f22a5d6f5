//! The components around the instances of this host and their links.

use std::sync::Arc;
use std::time::Duration;

use broker::Broker;

use super::base::Base;
use crate::error::NodeError;
use crate::instances::{
    self, BrokerObserver, Ended, Engines, Instances, LiveInstances, Outputs, Shortages, Starter, Starts,
    ThisHost,
};
use crate::links::{BrokerPeers, DataPort, LinkAnswerer, LinkAsker, Pool};
use crate::options::NodeOptions;

pub struct Residents {
    pub host: Arc<ThisHost>,
    pub live: Arc<LiveInstances>,
    pub engines: Arc<Engines>,
    pub broker: Broker,
    pub instances: Arc<Instances>,
    pub pool: Arc<Pool>,
    pub data_port: Arc<DataPort>,
    ended: Arc<Ended>,
    starts: Arc<Starts>,
    asker: LinkAsker,
}

impl Residents {
    /// Makes the components; links arrive at `data_port`.
    pub fn new(base: &Base, options: &NodeOptions, data_port: u16) -> Self {
        let Base { name, agent, directory, files, .. } = base;
        let host = Arc::new(ThisHost::new(name.clone(), agent.clone(), options.nics.clone()));
        let (live, ended, starts) = (Arc::default(), Arc::default(), Arc::<Starts>::default());
        let engines = Arc::new(Engines::new(options.engines.clone()));
        let pool = Arc::new(Pool::new(base.dialer.clone(), directory.clone()));
        let asker = LinkAsker::new(name.clone(), agent.clone(), directory.clone(), pool.clone());
        let shortages = Shortages::new(Arc::clone(&live), engines.clone(), agent.clone());
        let observer = BrokerObserver::new(agent.clone(), files.clone(), shortages, starts.clone());
        let broker = Broker::new(BrokerPeers(asker.clone()), observer);
        let data_port = Arc::new(DataPort::new(data_port, directory.clone(), broker.clone()));
        let instances = Arc::new(Instances::new(
            live.clone(),
            engines.clone(),
            broker.clone(),
            files.clone(),
            agent.clone(),
            Arc::clone(&ended),
            host.clone(),
        ));
        Self { host, live, engines, broker, instances, pool, data_port, ended, starts, asker }
    }

    /// Finds the instances of this host again.
    ///
    /// # Errors
    /// If an engine cannot find its instances.
    pub async fn recover(&self, base: &Base) -> Result<(), NodeError> {
        Ok(instances::recover(&self.engines, &base.agent, &base.files, &self.live).await?)
    }

    pub fn starter(&self, base: &Base, patience: Duration) -> Starter {
        Starter::new(
            self.host.clone(),
            self.instances.clone(),
            self.starts.clone(),
            self.broker.clone(),
            self.engines.clone(),
            base.agent.clone(),
            patience,
        )
    }

    pub fn outputs(&self) -> Outputs {
        Outputs::new(self.live.clone(), self.broker.clone(), self.ended.clone())
    }

    pub fn answerer(&self, base: &Base) -> Arc<LinkAnswerer> {
        let (asker, agent, live) = (self.asker.clone(), base.agent.clone(), self.live.clone());
        let (broker, data_port, pool) = (self.broker.clone(), self.data_port.clone(), self.pool.clone());
        Arc::new(LinkAnswerer::new(asker, agent, live, broker, data_port, pool))
    }
}
