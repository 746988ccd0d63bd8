"""Processes acquire, renew, stand still, die and release the same devices while their server dies: nobody has two."""
