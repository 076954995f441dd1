//! The intervals and samples of a script, and its own end.

use std::sync::Arc;
use std::time::Duration;

use exoprobe_probes::Engine;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use super::running::RunningScript;
use crate::service::Closing;

/// Work that is due at times.
#[derive(Clone, Copy)]
enum Task {
    /// The actions of this attachment.
    Interval(usize),
    /// Samples of this sampler.
    Sample(u32),
}

/// A task, and when it is due next.
struct Timer {
    next: Instant,
    period: Duration,
    task: Task,
}

impl Timer {
    fn new(start: Instant, nanoseconds: u64, task: Task) -> Self {
        let period = Duration::from_nanos(nanoseconds.max(1));
        Self { next: start + period, period, task }
    }

    /// Goes on to the first time after `now`. Returns how often it was due: 0 if it was not yet.
    fn pass(&mut self, now: Instant) -> u64 {
        let Some(late) = now.checked_duration_since(self.next) else { return 0 };
        let due = late.as_nanos() / self.period.as_nanos() + 1;
        let due = u32::try_from(due).unwrap_or(u32::MAX);
        self.next += self.period.saturating_mul(due);
        due.into()
    }
}

/// Runs a script's intervals and takes its samples until it ends; ends it once it has called
/// exit(), or the service closes.
pub(crate) async fn run_timers(
    script: Arc<RunningScript>,
    engine: Arc<Engine>,
    mut closing: Closing,
) {
    let mut timers = timers(&script);
    let (mut exit, mut extent) = (script.exit(), script.output().extent());
    loop {
        let next = timers.iter().map(|timer| timer.next).min();
        tokio::select! {
            biased;
            // Never an error: the script has the senders.
            _ = extent.wait_for(|extent| extent.is_complete) => return,
            _ = exit.wait_for(Option::is_some) => break,
            () = closing.closed() => break,
            () = until(next) => {}
        }
        let now = Instant::now();
        for timer in &mut timers {
            let due = timer.pass(now);
            if due > 0 {
                run(&script, &engine, timer.task, due).await;
            }
        }
    }
    let _ = spawn_blocking(move || script.end(&engine)).await;
}

fn timers(script: &RunningScript) -> Vec<Timer> {
    let start = Instant::now();
    let intervals = script.actions().intervals().into_iter();
    let intervals = intervals.map(|(attachment, nanoseconds)| {
        Timer::new(start, nanoseconds, Task::Interval(attachment))
    });
    let samplers = script.samplers().into_iter();
    let samplers =
        samplers.map(|sampler| Timer::new(start, sampler.nanoseconds, Task::Sample(sampler.id)));
    intervals.chain(samplers).collect()
}

/// Runs a task that was due so often, once. Intervals that the host was too slow for are left out;
/// such samples are counted as lost.
async fn run(script: &Arc<RunningScript>, engine: &Arc<Engine>, task: Task, due: u64) {
    let (script, engine) = (Arc::clone(script), Arc::clone(engine));
    // An error is a panic, which was reported.
    let _ = spawn_blocking(move || match task {
        Task::Interval(attachment) => script.actions().run_timed(attachment, &engine),
        Task::Sample(sampler) => {
            if let Err(error) = engine.sample(sampler, due - 1) {
                script.output().warn(&error.to_string());
            }
        }
    })
    .await;
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_says_how_often_it_was_due() {
        let start = Instant::now();
        let mut timer = Timer::new(start, 10_000_000, Task::Sample(1));
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        assert_eq!(timer.pass(at(9)), 0);
        assert_eq!(timer.pass(at(10)), 1);
        assert_eq!((timer.pass(at(15)), timer.pass(at(49))), (0, 3));
        assert_eq!(timer.next, at(50));
    }
}
