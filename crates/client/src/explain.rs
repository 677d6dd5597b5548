//! Why a call would go where it goes, with how fresh the facts are.
