"""Who has room: agents whose contexts outgrow the KV memory of simulated servers."""
