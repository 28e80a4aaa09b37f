"""From one store to another, a whole checkpoint at a time: planned purely, carried out plainly."""
