"""The mesh, the sharding table, the guards between hosts."""
