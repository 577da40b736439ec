//! Types that strategies and the engine exchange: blocks as a rule sees them, proposed edits, layouts and settings.

pub mod edit;
pub mod layout;
pub mod setting;
pub mod view;
