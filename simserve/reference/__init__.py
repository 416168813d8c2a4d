"""The whole simulator in plain SimPy, meant to be read: the specification that the fast plane is compared with."""
