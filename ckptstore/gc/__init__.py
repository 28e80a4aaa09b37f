"""What may be deleted, and deleting it: plans are made purely, and carried out plainly."""
