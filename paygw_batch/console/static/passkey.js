// Asks for a passkey when a form that needs one is submitted, and adds the signature to the form.
//
// Such a form has data-passkey="get" or "create", data-challenge and data-rp-id; "get" also has data-credential (if
// empty, any passkey of this site will do), and "create" has data-user-name and data-user-id. Bytes are base64url. The
// element [data-passkey-problem] of the form is shown if the passkey fails.
"use strict";
(() => {
  const bytesOf = (text) => {
    const plain = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    return Uint8Array.from(plain, (character) => character.charCodeAt(0));
  };
  const textOf = (buffer) => {
    const plain = String.fromCharCode(...new Uint8Array(buffer));
    return btoa(plain).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  };

  const sign = async (data) => {
    const allowed = data.credential ? [{ type: "public-key", id: bytesOf(data.credential) }] : [];
    const credential = await navigator.credentials.get({
      publicKey: {
        challenge: bytesOf(data.challenge),
        rpId: data.rpId,
        allowCredentials: allowed,
        userVerification: "required",
      },
    });
    return {
      credential: credential.id,
      client_data: textOf(credential.response.clientDataJSON),
      authenticator_data: textOf(credential.response.authenticatorData),
      signature: textOf(credential.response.signature),
    };
  };

  const create = async (data) => {
    const credential = await navigator.credentials.create({
      publicKey: {
        challenge: bytesOf(data.challenge),
        rp: { id: data.rpId, name: document.title },
        user: { id: bytesOf(data.userId), name: data.userName, displayName: data.userName },
        pubKeyCredParams: [-7, -8, -257].map((alg) => ({ type: "public-key", alg })),
        authenticatorSelection: { residentKey: "required", userVerification: "required" },
        attestation: "none",
      },
    });
    return {
      client_data: textOf(credential.response.clientDataJSON),
      authenticator_data: textOf(credential.response.getAuthenticatorData()),
      public_key: textOf(credential.response.getPublicKey()),
    };
  };

  const setField = (form, name, value) => {
    let field = form.elements.namedItem(name);
    if (!field) {
      field = document.createElement("input");
      field.type = "hidden";
      field.name = name;
      form.append(field);
    }
    field.value = value;
  };

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.dataset.passkey) {
      return;
    }
    event.preventDefault();
    const problem = form.querySelector("[data-passkey-problem]");
    const button = event.submitter;
    problem.hidden = true;
    if (button) {
      button.disabled = true;
    }
    try {
      const parts = await (form.dataset.passkey === "create" ? create(form.dataset) : sign(form.dataset));
      Object.entries(parts).forEach(([name, value]) => setField(form, name, value));
      form.submit();
    } catch {
      // The person closed the prompt, or has no passkey here. Nothing was signed, so nothing is sent.
      problem.hidden = false;
      if (button) {
        button.disabled = false;
      }
    }
  });
})();
