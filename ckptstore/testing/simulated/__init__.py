"""A store that has every kind of bad luck, reproducibly, in virtual time.

What is tested over it is the real uploader, protocol and reader. Take a ``SimulatedStore``,
give each process a ``Process`` of it, set the store's ``luck``, and run it all in
``run_virtual`` or under ``with_seeds``.
"""
