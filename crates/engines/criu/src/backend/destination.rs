//! The destination side of a move, for process trees.

use std::sync::Arc;

use engine_api::{Coming, Destination, Error, ImageSink, Needs, Phases, Postcopy, Result, Running, Watch};
use instance::{Blocker, InstanceName};

use super::images::Images;
use super::postcopy::PagerLink;
use crate::{ProcessEngine, pager};

/// Starts CRIU while the images arrive.
pub struct Arrival {
    pub engine: Arc<ProcessEngine>,
    pub name: InstanceName,
}

impl Destination for Arrival {
    fn verify(&self, needs: &Needs, is_postcopy: bool) -> Result<Vec<Blocker>> {
        let mut blockers = self.engine.verify(&details(needs)?)?;
        blockers.extend(pager::unavailable().filter(|_| is_postcopy));
        Ok(blockers)
    }

    fn prepare(&self, coming: Coming<'_>) -> Result<()> {
        self.engine.prepare(coming.spec, details(coming.needs)?.images())?;
        if coming.is_postcopy {
            self.engine.expect_postcopy(&self.name)?;
        }
        Ok(self.engine.arm(&self.name)?)
    }

    fn sink(&self) -> Result<Box<dyn ImageSink>> {
        Ok(Box::new(Images::new(self.engine.image_directory(&self.name)?)))
    }

    fn postcopy(&self) -> Result<Option<Arc<dyn Postcopy>>> {
        let connection = self.engine.pager(&self.name)?;
        let (engine, name) = (self.engine.clone(), self.name.clone());
        Ok(connection.map(|connection| Arc::new(PagerLink { engine, name, connection }) as _))
    }

    fn restore(&self, watch: &Watch<'_>) -> Result<Phases> {
        Ok(self.engine.restore(&self.name, watch)?)
    }

    fn release(&self, watch: &Watch<'_>) -> Result<Running> {
        Ok(self.engine.release(&self.name, watch)?)
    }

    fn abort(&self) -> Result<()> {
        Ok(self.engine.abort(&self.name)?)
    }
}

fn details(needs: &Needs) -> Result<crate::Needs> {
    let what = "this host cannot decode the instance's needs, as the source reports them";
    postcard::from_bytes(&needs.details)
        .map_err(|_| Error::unusable(what, "run the same release on both hosts"))
}
